"""TLS with extenders: trusted servers, client certificates, invalid settings."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from asched.config.kube_scheduler import Extender, ExtenderTLS
from asched.kube.errors import KubeConfigError
from asched.kube.extenders import ExtenderError, ExtenderNodes, open_extenders
from asched.model.meta import ObjectMeta
from asched.model.node import Node
from asched.model.pod import Pod
from tests.extenders.certificates import CERTIFICATE, KEY, NAME
from tests.extenders.service import names_of, serving

POD = Pod(metadata=ObjectMeta(name="p", namespace="default", uid="u"))
NODES = ExtenderNodes([Node(metadata=ObjectMeta(name="n0"))])
CA = CERTIFICATE.encode()


def server_side(folder: Path, *, wants_certificate: bool = False) -> ssl.SSLContext:
    (folder / "cert.pem").write_text(CERTIFICATE)
    (folder / "key.pem").write_text(KEY)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    if wants_certificate:
        context.load_verify_locations(cadata=CERTIFICATE)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def passed(
    url: str, tls: ExtenderTLS | None, *, enable_https: bool = False
) -> frozenset[str]:
    extender = Extender(
        url,
        filter_verb="filter",
        node_cache_capable=True,
        tls_config=tls,
        enable_https=enable_https,
    )
    async with open_extenders([extender]) as (opened,):
        return (await opened.filter(POD, NODES)).passed


@pytest.mark.parametrize(
    ("tls", "enable_https"),
    [
        (ExtenderTLS(ca_data=CA, server_name=NAME), True),
        (ExtenderTLS(ca_data=CA, server_name=NAME), False),
        (ExtenderTLS(insecure=True), False),
        (ExtenderTLS(insecure=True), True),
    ],
)
async def test_trusted_certificate(
    tmp_path: Path, tls: ExtenderTLS | None, enable_https: bool
) -> None:
    async with serving(server_side(tmp_path)) as service:
        service.answer("filter", lambda question: {"NodeNames": names_of(question)})
        assert await passed(service.url, tls, enable_https=enable_https) == {"n0"}


@pytest.mark.parametrize(
    "tls", [None, ExtenderTLS(ca_data=CA), ExtenderTLS(ca_data=CA, server_name="other.test")]
)
@pytest.mark.parametrize("enable_https", [True, False])
async def test_untrusted_certificate(
    tmp_path: Path, tls: ExtenderTLS | None, enable_https: bool
) -> None:
    async with serving(server_side(tmp_path)) as service:
        with pytest.raises(ExtenderError, match="certificate verify failed"):
            await passed(service.url, tls, enable_https=enable_https)
        assert service.questions == []


async def test_client_certificate_from_files_or_data(tmp_path: Path) -> None:
    async with serving(server_side(tmp_path, wants_certificate=True)) as service:
        service.answer("filter", lambda question: {"NodeNames": names_of(question)})
        files = ExtenderTLS(
            server_name=NAME,
            ca_file=str(tmp_path / "cert.pem"),
            cert_file=str(tmp_path / "cert.pem"),
            key_file=str(tmp_path / "key.pem"),
        )
        assert await passed(service.url, files) == {"n0"}
        # Data takes precedence over files, which may be missing.
        data = ExtenderTLS(
            server_name=NAME,
            ca_data=CA,
            cert_file="/nowhere",
            cert_data=CA,
            key_file="/nowhere",
            key_data=KEY.encode(),
        )
        assert await passed(service.url, data) == {"n0"}
        with pytest.raises(ExtenderError):
            await passed(service.url, ExtenderTLS(server_name=NAME, ca_data=CA))


@pytest.mark.parametrize(
    ("tls", "message"),
    [
        (
            ExtenderTLS(insecure=True, ca_data=CA),
            "a certificate authority and insecure are mutually exclusive",
        ),
        (ExtenderTLS(cert_data=CA), "tlsConfig: a client certificate needs its key"),
        (ExtenderTLS(ca_file="/nowhere/ca.pem"), "tlsConfig: .*No such file"),
        (ExtenderTLS(ca_data=b"not a certificate"), "tlsConfig: "),
    ],
)
async def test_invalid_tls_settings(tls: ExtenderTLS, message: str) -> None:
    with pytest.raises(KubeConfigError, match=f"^extender https://127.0.0.1:1/x: {message}"):
        await passed("https://user:secret@127.0.0.1:1/x", tls)
