"""Kubeconfigs, valid and invalid, and the service account of a pod."""

from __future__ import annotations

import base64
import os
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from asched.kube.connection import (
    TOKEN_FILE_REREAD,
    KubeConfig,
    ServiceAccount,
    connect,
    find_credentials,
)
from asched.kube.errors import KubeConfigError
from tests.kube.harness import BEGIN, Answer, ScriptedServer, in_turn

X_AT_C = "current-context: x\ncontexts: [{name: x, context: {cluster: c, user: me}}]\n"
AT_FTP = "clusters: [{name: c, cluster: {server: 'ftp://a'}}]\nusers: [{name: me, user: {}}]\n"
AUTHORITY = """\
-----BEGIN CERTIFICATE-----
MIIBlzCCAT2gAwIBAgIUJxZGsuUfMySmYh0+dEWqvDCjd8cwCgYIKoZIzj0EAwIw
IDEeMBwGA1UEAwwVYXNjaGVkIHRlc3QgYXV0aG9yaXR5MCAXDTI2MTEyMDIzNTg1
NFoYDzIxMjYxMDI3MjM1ODU0WjAgMR4wHAYDVQQDDBVhc2NoZWQgdGVzdCBhdXRo
b3JpdHkwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAQaxHc150hEpqtFMR5TSnnp
yP3KD9Vtx8A8GCnIZw77A+QcOYY45z1yp8Xl2SgMmjMJ+Rh0jpdBJ9pmzKr1OV11
o1MwUTAdBgNVHQ4EFgQUurhLbWI0pIRI2uE86dImmrbr0wYwHwYDVR0jBBgwFoAU
urhLbWI0pIRI2uE86dImmrbr0wYwDwYDVR0TAQH/BAUwAwEB/zAKBggqhkjOPQQD
AgNIADBFAiEAiCi4BJLXWztKLofKNMIwSZ9CAl+gMJlouVqZZDYl2c4CIFDpSeu3
SpFmIs0bh3t20Yzile2rCaE0TKoaOXkxzEGl
-----END CERTIFICATE-----
"""
"""A self-signed certificate; its key was deleted."""
GARBAGE = base64.b64encode(b"not a certificate").decode()


def kubeconfig(
    folder: Path, server: str, user: dict[str, Any] | None = None, **cluster: Any
) -> Path:
    content = {
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = folder / "config"
    path.write_text(yaml.safe_dump(content))
    return path


async def test_connect_sends_token(tmp_path: Path) -> None:
    async with ScriptedServer(in_turn(Answer(body=b"ok"))).run() as server:
        path = kubeconfig(tmp_path, server.url + "/", {"token": "secret"})
        async with connect(path, "x", qps=100) as client:
            assert await client.request("GET", "/readyz") == b"ok"
            assert client.server == server.url
    assert server.asked[0].headers["Authorization"] == "Bearer secret"
    assert server.asked[0].path == "/readyz"


def test_token_needs_no_client_library(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, "https://api", {"token": "t"})
    code = f"""
import sys, asyncio, datetime, pathlib
from asched.kube.connection import KubeConfig
loading = KubeConfig([pathlib.Path({str(path)!r})]).load(datetime.datetime.now(datetime.UTC))
print(asyncio.run(loading).authorization, "kubernetes_asyncio" in sys.modules)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "Bearer t False\n"


async def test_user_in_url_is_sent_as_basic_authorization(tmp_path: Path) -> None:
    async with ScriptedServer(in_turn(Answer(body=b"ok"))).run() as server:
        with_user = server.url.replace("//", "//me%40home:a:b@")
        async with connect(kubeconfig(tmp_path, with_user)) as client:
            assert await client.request("GET", "/readyz") == b"ok"
            assert client.server == server.url
    authorization = server.asked[0].headers["Authorization"]
    assert authorization == "Basic " + base64.b64encode(b"me@home:a:b").decode()


async def test_token_file_is_reread_every_minute(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    path = kubeconfig(tmp_path, "http://api", {"tokenFile": str(tmp_path / "token")})
    source = KubeConfig([path])
    first = await source.load(BEGIN)
    assert first.authorization == "Bearer first"
    assert first.renew_at == BEGIN + TOKEN_FILE_REREAD
    (tmp_path / "token").write_text("second\n")
    assert (await source.load(BEGIN)).authorization == "Bearer second"


async def test_token_file_takes_precedence_over_token(tmp_path: Path) -> None:
    user = {"token": "static", "tokenFile": str(tmp_path / "token")}
    source = KubeConfig([kubeconfig(tmp_path, "http://api", user)])
    missing = await source.load(BEGIN)
    assert missing.authorization == "Bearer static"
    (tmp_path / "token").write_text("rotated\n")
    found = await source.load(BEGIN)
    assert found.authorization == "Bearer rotated"
    assert missing.renew_at == found.renew_at == BEGIN + TOKEN_FILE_REREAD


async def test_exec_plugin_returns_token_and_expiry(tmp_path: Path) -> None:
    credential = (
        '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential",'
        '"status":{"token":"minted","expirationTimestamp":"2026-01-01T01:00:00Z"}}'
    )
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", f"print('{credential}')"],
    }
    path = kubeconfig(tmp_path, "http://api", {"exec": plugin})
    found = await KubeConfig([path]).load(BEGIN)
    assert found.authorization == "Bearer minted"
    assert found.renew_at is not None
    assert 0 < (BEGIN.replace(hour=1) - found.renew_at).total_seconds() < 60


async def test_user_name_and_password_are_sent_as_basic_authorization(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, "http://api", {"username": "me", "password": "a:b"})
    found = await KubeConfig([path]).load(BEGIN)
    assert found.authorization == "Basic " + base64.b64encode(b"me:a:b").decode()


async def test_expired_oidc_token_without_refresh_token_is_rejected(tmp_path: Path) -> None:
    payload = base64.urlsafe_b64encode(b'{"exp": 1}').decode().rstrip("=")
    provider = {"name": "oidc", "config": {"id-token": f"a.{payload}.c"}}
    path = kubeconfig(tmp_path, "http://api", {"auth-provider": provider})
    with pytest.raises(KubeConfigError, match="oidc: No valid id-token"):
        await KubeConfig([path]).load(BEGIN)


async def test_files_in_kubeconfig_variable_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = kubeconfig(tmp_path, "http://api", {"tokenFile": "token"})
    (tmp_path / "token").write_text("relative to the file\n")
    contexts = tmp_path / "contexts"
    contexts.write_text("contexts: [{name: y, context: {cluster: c, user: u}}]\n")
    monkeypatch.setenv("KUBECONFIG", f"{contexts}{os.pathsep}{tmp_path / 'none'}:{cluster}")
    found = await find_credentials(None, "y").load(BEGIN)
    assert found.server == "http://api"
    assert found.authorization == "Bearer relative to the file"
    assert found.renew_at == BEGIN + TOKEN_FILE_REREAD


async def test_certificates_are_verified_by_default(tmp_path: Path) -> None:
    strict = await KubeConfig([kubeconfig(tmp_path, "https://api")]).load(BEGIN)
    assert strict.tls is not None
    assert (strict.tls.verify_mode, strict.tls.check_hostname) == (ssl.CERT_REQUIRED, True)
    trusting: dict[str, Any] = {"insecure-skip-tls-verify": True}
    path = kubeconfig(tmp_path, "https://api", **trusting)
    loose = await KubeConfig([path]).load(BEGIN)
    assert loose.tls is not None
    assert loose.tls.verify_mode is ssl.CERT_NONE


async def test_unchanged_certificates_reuse_tls_context(tmp_path: Path) -> None:
    source = KubeConfig([kubeconfig(tmp_path, "https://api", {"token": "t"})])
    assert (await source.load(BEGIN)).tls is (await source.load(BEGIN)).tls


@pytest.mark.parametrize(
    ("user", "cluster", "says"),
    [
        ({"client-certificate": "/nowhere.crt"}, {}, "/nowhere.crt"),
        (
            {"client-certificate-data": GARBAGE, "client-key-data": GARBAGE},
            {},
            "client certificate",
        ),
        ({"client-certificate-data": "%%%"}, {}, "client certificate"),
        ({}, {"certificate-authority": "/nowhere.ca"}, "/nowhere.ca"),
        ({}, {"certificate-authority-data": GARBAGE}, "certificate authority"),
        ({"tokenFile": "/no/token"}, {}, "/no/token"),
        ({"exec": {"command": "false", "apiVersion": "v1"}}, {}, "exec"),
        ({"exec": {"command": "/no/such/plugin", "apiVersion": "v1"}}, {}, "/no/such/plugin"),
        ({"exec": {"command": "true"}}, {}, "apiVersion"),
        ({"token": "tökén"}, {}, "ASCII"),
        ({"token": "\u20ac"}, {}, "ASCII"),
        ({}, {"proxy-url": "socks5://me:canary@proxy:1080"}, "proxy-url must be an http or https"),
        ({}, {"proxy-url": 3}, "proxy-url must be an http or https"),
        ({}, {"proxy-url": "http://me:canary@proxy..internal"}, "not 'proxy..internal'"),
        ({}, {"tls-server-name": ".internal"}, "tls-server-name '.internal' is not"),
        ({}, {"server": "https://api..internal"}, "not 'https://api..internal'"),
    ],
)
async def test_invalid_credentials_raise_one_line_error(
    user: dict[str, Any], cluster: dict[str, Any], says: str, tmp_path: Path
) -> None:
    path = kubeconfig(tmp_path, user=user, **{"server": "https://api", **cluster})
    with pytest.raises(KubeConfigError) as caught:
        await KubeConfig([path]).load(BEGIN)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a kubeconfig"),
        ("- a\n", "not a kubeconfig"),
        ("a: [\n", "not YAML"),
        ("contexts: []\n", "no current-context"),
        ("current-context: x\ncontexts: {}\n", "no context 'x'; available: none"),
        (
            "current-context: x\ncontexts: [{name: a, context: {}}, {name: b}]\n",
            "no context 'x'; available: a, b",
        ),
        ("current-context: x\ncontexts: [{name: x, context: {cluster: c}}]\n", "user: None"),
        (X_AT_C + "users: [{name: me, user: {}}]\n", "name c in"),
        (X_AT_C + "clusters: [{name: c, cluster: {}}]\n", "user: 'me'"),
        (X_AT_C + "clusters: [{name: c}]\nusers: [{name: me, user: {}}]\n", "Expected key cluster"),
        (
            X_AT_C + AT_FTP,
            "http or https URL",
        ),
    ],
)
async def test_invalid_kubeconfig_raises_one_line_error(
    text: str, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(KubeConfigError) as caught:
        async with connect(path):
            pass
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_missing_file_and_directory_raise_one_line_error(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(KubeConfigError, match=str(path)):
            await find_credentials(path, None).load(BEGIN)


async def test_unknown_context_lists_available_contexts(tmp_path: Path) -> None:
    with pytest.raises(KubeConfigError, match=r"no context 'prod'; available: x"):
        await find_credentials(kubeconfig(tmp_path, "http://api"), "prod").load(BEGIN)


async def test_find_credentials_without_source_lists_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(KubeConfigError, match="give --kubeconfig"):
        find_credentials(None, None)
    there = kubeconfig(tmp_path, "http://api")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'none'}{os.pathsep}{there}")
    assert (await find_credentials(None, None).load(BEGIN)).server == "http://api"


async def test_service_account_of_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    assert isinstance(find_credentials(None, None), ServiceAccount)
    account = ServiceAccount(tmp_path)
    with pytest.raises(KubeConfigError, match="token file does not exist"):
        await account.load(BEGIN)
    (tmp_path / "token").write_text("abc\n")
    (tmp_path / "ca.crt").write_text("garbage")
    with pytest.raises(KubeConfigError, match="certificate authority"):
        await account.load(BEGIN)
    (tmp_path / "ca.crt").write_text(AUTHORITY)
    found = await account.load(BEGIN)
    assert found.server == "https://10.0.0.1:443"
    assert found.authorization == "Bearer abc"
    assert found.renew_at == BEGIN + TOKEN_FILE_REREAD


def laughs(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (laughs(40), "once its aliases are expanded"),
        ("a: &a {<<: *a}\n", "an alias contains itself"),
        ("a: &a [*a]\n", "an alias contains itself"),
        ('a: ["\\ud800"]\n', "half of a surrogate pair"),
        ("[" * 10_000, "nested too deeply"),
        ("[" * 500 + "]" * 500, "too deep"),
        ("a: 1\na: 2\n", "config:1: a is given twice"),
        ("users: [{name: u, user: {token: !!int canary}}]\n", "users.0.user.token"),
        ("users: [{name: u, user: {token: 'canary\n", "not YAML"),
        ("token: canary\n- canary\n", "not YAML"),
    ],
)
async def test_invalid_yaml_is_one_line_without_values(
    text: str, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(KubeConfigError, match=says) as caught:
        await KubeConfig([path]).load(BEGIN)
    assert "\n" not in str(caught.value)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("user", "cluster"),
    [
        ({"client-certificate-data": "canary%"}, {}),
        ({"client-certificate-data": 3, "token": "canary"}, {}),
        ({"username": "canary"}, {"certificate-authority-data": "canary"}),
        ({"auth-provider": {"name": "oidc", "config": {"id-token": "a.canary.c"}}}, {}),
        ({"auth-provider": {"name": "oidc", "config": {"id-token": "canary"}}}, {}),
        ({"auth-provider": {"name": "gcp", "config": {"access-token": "canary"}}}, {}),
        ({"token": "canary\x07"}, {}),
    ],
)
async def test_errors_do_not_quote_credentials(
    user: dict[str, Any], cluster: dict[str, Any], tmp_path: Path
) -> None:
    path = kubeconfig(tmp_path, "https://api", user, **cluster)
    with pytest.raises(KubeConfigError) as caught:
        await KubeConfig([path]).load(BEGIN)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    "server", ["http://api:99999", "http://api:x", "http://[::1", "https://:443", "http://äpi"]
)
async def test_server_to_which_no_request_can_be_sent_is_rejected(
    server: str, tmp_path: Path
) -> None:
    path = kubeconfig(tmp_path, server, {"token": "t"})
    with pytest.raises(KubeConfigError, match="the server must be an http or https URL"):
        await KubeConfig([path]).load(BEGIN)


async def test_password_in_invalid_server_is_not_shown(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, "ftp://me:canary@api", {"token": "t"})
    with pytest.raises(KubeConfigError, match="http or https URL, not 'api'"):
        await KubeConfig([path]).load(BEGIN)


async def test_endless_token_file_is_an_error(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, "http://api", {"tokenFile": "/dev/zero"})
    with pytest.raises(KubeConfigError):
        await KubeConfig([path]).load(BEGIN)
