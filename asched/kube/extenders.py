"""Calls to HTTP extenders: the wire format of ``k8s.io/kube-scheduler/extender/v1``.

Its fields have no JSON names of their own, so they are written as in Go (``NodeNames``), and read
in any case, as Go's decoder reads them. A request goes to the configured URL and nowhere else: no
redirect is followed, no proxy asked, nothing is tried twice.

TLS with extenders: ``tlsConfig`` and ``enableHTTPS`` as client-go reads them.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import aiohttp
import anyio
import msgspec

from asched.config.extenders import in_order_of_asking
from asched.config.kube_scheduler import Extender, ExtenderTLS
from asched.framework.interface import Victim
from asched.framework.runtime.extenders import PreemptionCandidate, shown_url
from asched.kube.connection import KEEPALIVE_S, USER_AGENT
from asched.kube.errors import KubeConfigError
from asched.model.meta import ApiStruct
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.quantity import MAX_INT64, MIN_INT64


class TlsSettings(NamedTuple):
    """How to speak TLS with one extender."""

    context: ssl.SSLContext
    server_name: str | None
    """What its certificate is checked against; None for the host of the URL."""


def tls_settings(extender: Extender) -> TlsSettings | None:
    """None where the system's own certificates will do.

    Only ``insecure`` leaves certificates unverified. (In kube-scheduler so does ``enableHTTPS`` with no
    certificate authority.) Data takes precedence over files. Raises :class:`KubeConfigError`.
    """
    tls = extender.tls_config or ExtenderTLS()
    has_ca = bool(tls.ca_file or tls.ca_data)
    if tls == ExtenderTLS():
        return None
    where = f"extender {shown_url(extender.url_prefix)}"
    if tls.insecure and has_ca:
        raise KubeConfigError(f"{where}: a certificate authority and insecure exclude each other")
    try:
        context = _context(tls)
    except (OSError, ValueError) as error:
        what = " ".join(str(error).split()) or type(error).__name__
        files = [file for file in (tls.ca_file, tls.cert_file, tls.key_file) if file]
        if files:
            # Of certificate files the system says what is wrong, but not with which.
            what += f" ({', '.join(files)})"
        raise KubeConfigError(f"{where}: tlsConfig: {what}") from None
    return TlsSettings(context, tls.server_name or None)


def _context(tls: ExtenderTLS) -> ssl.SSLContext:
    if tls.ca_data:
        context = ssl.create_default_context(cadata=tls.ca_data.decode())
    else:
        context = ssl.create_default_context(cafile=tls.ca_file or None)
    # Go does not ask for RFC 5280's letter, and authorities made by old tools would fail under it.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if tls.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    has_cert, has_key = bool(tls.cert_data or tls.cert_file), bool(tls.key_data or tls.key_file)
    if has_cert != has_key:
        raise ValueError("a client certificate needs its key, and a key its certificate")
    if has_cert:
        with (
            _as_file(tls.cert_data, tls.cert_file) as cert,
            _as_file(tls.key_data, tls.key_file) as key,
        ):
            context.load_cert_chain(cert, key)
    return context


@contextmanager
def _as_file(data: bytes, file: str) -> Iterator[str]:
    """A file with ``data``, readable by nobody else, for as long as the block; else ``file``."""
    if not data:
        yield file
        return
    handle, path = tempfile.mkstemp()
    try:
        with os.fdopen(handle, "wb") as written:
            written.write(data)
        yield path
    finally:
        os.unlink(path)


MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""A longer answer is a mistake: 5,000 complete nodes are about 50 MiB."""
AT_ONCE: Final = 16
"""Requests to one extender at the same time; further ones wait, which is no part of its timeout."""

_NEVER_SENT = (aiohttp.ClientConnectorError, aiohttp.InvalidURL)
_FROM_A_PROXY = (502, 504)
"""Answers of a proxy that did not get the extender's."""

T = TypeVar("T")


class ExtenderError(Exception):
    """The extender failed: not reached, late, refusing, or talking nonsense. One line."""

    def __init__(self, message: str, *, in_doubt: bool = False) -> None:
        super().__init__(message)
        self.in_doubt = in_doubt
        """Whether what it was asked for may be done later: it was sent, and nobody said what became of
        it."""


class AskedNodes:
    """The nodes of a question. Written as JSON once, however many questions are about them: of
    thousands of nodes that takes longer than all else in asking."""

    def __init__(self, objects: Sequence[Node]) -> None:
        self.objects = objects
        self.names = [node.metadata.name for node in objects]
        self._written: dict[bool, msgspec.Raw] = {}

    def written(self, *, compact: bool) -> msgspec.Raw:
        """The list of names, if ``compact``, or else of whole nodes."""
        known = self._written.get(compact)
        if known is None:
            known = msgspec.Raw(msgspec.json.encode(self.names if compact else self.objects))
            self._written[compact] = known
        return known


class ExtenderRejection(NamedTuple):
    """Why a node was refused."""

    message: str
    unresolvable: bool


class FilterAnswer(NamedTuple):
    """What an extender said of the nodes of a question. A node in neither was not mentioned."""

    passed: frozenset[str]
    refused: Mapping[str, ExtenderRejection]


class VictimPods(NamedTuple):
    """A candidate with its victims as pods."""

    candidate: PreemptionCandidate
    pods: Sequence[Pod]


class HttpExtender:
    """One configured extender."""

    def __init__(
        self, config: Extender, session: aiohttp.ClientSession, tls: TlsSettings | None
    ) -> None:
        self.config = config
        self.name = shown_url(config.url_prefix)
        self._session = session
        self._tls = tls
        self._places = anyio.CapacityLimiter(AT_ONCE)
        # As in Kubernetes' component configuration, none means the default.
        default_s = Extender("").http_timeout.total_seconds()
        self._timeout_s = config.http_timeout.total_seconds() or default_s

    @property
    def busy(self) -> bool:
        """Whether an answer is awaited."""
        places = self._places.statistics()
        return bool(places.borrowed_tokens or places.tasks_waiting)

    async def filter(self, pod: Pod, nodes: AskedNodes) -> FilterAnswer:
        """Raises :class:`ExtenderError`."""
        url, fields = await self._ask_about(self.config.filter_verb, pod, nodes)
        error = _decoded(url, fields.get("error"), _TEXT, "")
        if error:
            raise ExtenderError(error)
        passed = self._passed(url, fields)
        known = frozenset(nodes.names)
        for name in passed:
            if name not in known:
                raise ExtenderError(
                    f'extender "{self.name}" claims a filtered node "{name}" which is not found in'
                    " the input node list"
                )
        unresolvable = _decoded(url, fields.get("failedandunresolvablenodes"), _REASONS, {})
        failed = _decoded(url, fields.get("failednodes"), _REASONS, {})
        refused = {name: ExtenderRejection(message, False) for name, message in failed.items()}
        refused |= {
            name: ExtenderRejection(message, True) for name, message in unresolvable.items()
        }
        return FilterAnswer(frozenset(passed), refused)

    def _passed(self, url: str, fields: Mapping[str, msgspec.Raw]) -> list[str]:
        if self.config.node_cache_capable and "nodenames" in fields:
            return _decoded(url, fields["nodenames"], _TEXTS, [])
        if "nodes" not in fields:
            return []
        items = _fields(url, fields["nodes"]).get("items")
        return [item.metadata.name for item in _decoded(url, items, _NODES, [])]

    async def prioritize(self, pod: Pod, nodes: AskedNodes) -> dict[str, int]:
        """Score by node, as the extender gave it. Raises :class:`ExtenderError`."""
        url, body = await self._send_nodes(self.config.prioritize_verb, pod, nodes)
        scores: dict[str, int] = {}
        for raw in _decoded(url, body, _LIST, []):
            fields = _fields(url, raw)
            host = _decoded(url, fields.get("host"), _TEXT, "")
            score = _decoded(url, fields.get("score"), _NUMBER, 0)
            # A host that is given twice counts twice, as in kube-scheduler.
            scores[host] = min(max(scores.get(host, 0) + score, MIN_INT64), MAX_INT64)
        return scores

    async def preempt(
        self, pod: Pod, asked: Sequence[VictimPods]
    ) -> tuple[PreemptionCandidate, ...]:
        """The candidates that the extender leaves, in its words. Victims are known by their uid
        alone, their key is filled in where it was among the question's.

        Raises :class:`ExtenderError`.
        """
        compact = self.config.node_cache_capable
        victims = {about.candidate.node: _victims(about, compact=compact) for about in asked}
        question = {
            "Pod": complete(pod),
            "NodeNameToVictims": None if compact else victims,
            "NodeNameToMetaVictims": victims if compact else None,
        }
        url, body = await self._send(self.config.preempt_verb, question)
        answer = _fields(url, body).get("nodenametometavictims")
        keys = {victim.uid: victim.key for about in asked for victim in about.candidate.victims}
        found = []
        for node, raw in _decoded(url, answer, _MAP, {}).items():
            candidate = _candidate(url, node, raw, keys)
            if candidate.victims:
                found.append(candidate)
            elif not self.config.ignorable:
                raise ExtenderError(f'expected at least one victim pod on node "{node}"')
        return tuple(found)

    async def bind(self, pod: Pod, node_name: str) -> None:
        """Have the extender bind the pod. Raises :class:`ExtenderError`; then it may be bound or
        not, or, where that is in doubt, may be bound later."""
        meta = pod.metadata
        question = {
            "PodName": meta.name,
            "PodNamespace": meta.namespace,
            "PodUID": meta.uid,
            "Node": node_name,
        }
        url, body = await self._send(self.config.bind_verb, question)
        error = _decoded(url, _fields(url, body).get("error"), _TEXT, "")
        if error:
            raise ExtenderError(error)

    # -- requests -----------------------------------------------------------------------------

    async def _ask_about(
        self, verb: str, pod: Pod, nodes: AskedNodes
    ) -> tuple[str, dict[str, msgspec.Raw]]:
        url, body = await self._send_nodes(verb, pod, nodes)
        return url, _fields(url, body)

    async def _send_nodes(self, verb: str, pod: Pod, nodes: AskedNodes) -> tuple[str, msgspec.Raw]:
        compact = self.config.node_cache_capable
        question = {
            "Pod": complete(pod),
            "Nodes": None if compact else {"metadata": {}, "items": nodes.written(compact=False)},
            "NodeNames": nodes.written(compact=True) if compact else None,
        }
        return await self._send(verb, question)

    async def _send(self, verb: str, question: dict[str, Any]) -> tuple[str, msgspec.Raw]:
        """The answer's body, and the URL for messages."""
        url = f"{self.config.url_prefix.rstrip('/')}/{verb}"
        shown = shown_url(url)
        async with self._places:
            # Not before: a question of thousands of nodes is megabytes, and many may wait here.
            body = msgspec.json.encode(question)
            try:
                return shown, msgspec.Raw(await self._post(url, shown, verb, body))
            except TimeoutError:
                raise ExtenderError(
                    f'Post "{shown}": no answer within {self._timeout_s:g} s', in_doubt=True
                ) from None
            except (aiohttp.ClientError, OSError, ValueError) as error:
                what = " ".join(str(error).split()) or type(error).__name__
                sent = not isinstance(error, _NEVER_SENT)
                raise ExtenderError(f'Post "{shown}": {what}', in_doubt=sent) from None

    async def _post(self, url: str, shown: str, verb: str, body: bytes) -> bytes:
        tls = self._tls
        async with self._session.post(
            url,
            data=body,
            headers={"Content-Type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
            ssl=tls.context if tls is not None else True,
            server_hostname=tls.server_name if tls is not None else None,
            allow_redirects=False,
        ) as response:
            if response.status != 200:
                raise ExtenderError(
                    f"failed {verb} with extender at URL {shown}, code {response.status}",
                    in_doubt=response.status in _FROM_A_PROXY,
                )
            chunks, size = [], 0
            async for chunk in response.content.iter_any():
                size += len(chunk)
                if size > MAX_ANSWER_BYTES:
                    raise ExtenderError(
                        f'Post "{shown}": the answer is over {MAX_ANSWER_BYTES} bytes'
                    )
                chunks.append(chunk)
            return b"".join(chunks)


@asynccontextmanager
async def open_extenders(configured: Sequence[Extender]) -> AsyncIterator[tuple[HttpExtender, ...]]:
    """The extenders, ready to be called, in the order in which they are to be asked.

    Raises :class:`~asched.kube.errors.KubeConfigError` for certificates that cannot be used.
    """
    if not configured:
        yield ()
        return
    made = [(config, tls_settings(config)) for config in in_order_of_asking(configured)]
    # How many connections there are is bounded by the places that each extender has.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
    async with aiohttp.ClientSession(
        connector=connector,
        headers={"User-Agent": USER_AGENT},
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    ) as session:
        yield tuple(HttpExtender(config, session, tls) for config, tls in made)


# -- questions ------------------------------------------------------------------------------------


def complete(value: object) -> Any:
    """A model object as plain values with the API's own defaults written out.

    The journal leaves out what is as by default, ``schedulerName: default-scheduler`` for one; an
    extender in Go would read it as empty.
    """
    if isinstance(value, ApiStruct):
        plain = {}
        for field in _fields_of(type(value)):
            own = getattr(value, field.name)
            if own or (own is not None and own != field.default):
                plain[field.encode_name] = complete(own)
        return plain
    if isinstance(value, tuple):
        return [complete(item) for item in value]
    return value


@cache
def _fields_of(struct: type[ApiStruct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Looked up once for each kind: reading the annotations takes longer than the values."""
    return msgspec.structs.fields(struct)


def _victims(about: VictimPods, *, compact: bool) -> dict[str, Any]:
    pods: list[Any] = [complete(pod) for pod in about.pods]
    if compact:
        pods = [{"UID": victim.uid} for victim in about.candidate.victims]
    return {"Pods": pods, "NumPDBViolations": about.candidate.pdb_violations}


# -- answers --------------------------------------------------------------------------------------


class _NamedMeta(msgspec.Struct, frozen=True):
    name: str = ""


class _Named(msgspec.Struct, frozen=True):
    """Of a whole node that comes back only the name is of interest."""

    metadata: _NamedMeta = _NamedMeta()


_TEXT = msgspec.json.Decoder(str)
_TEXTS = msgspec.json.Decoder(list[str])
_REASONS = msgspec.json.Decoder(dict[str, str])
_NUMBER = msgspec.json.Decoder(Annotated[int, msgspec.Meta(ge=MIN_INT64, le=MAX_INT64)])
_NODES = msgspec.json.Decoder(list[_Named])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_MAP = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _decoded(url: str, raw: msgspec.Raw | None, decoder: msgspec.json.Decoder[T], default: T) -> T:
    """One value of an answer; ``default`` where it is absent or null."""
    if raw is None or bytes(raw) == b"null":
        return default
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ExtenderError(f"the answer of {url} does not decode: {error}") from None


def _fields(url: str, raw: msgspec.Raw) -> dict[str, msgspec.Raw]:
    """The fields of an answer by lower-case name; nulls left out."""
    fields = _decoded(url, raw, _MAP, {})
    return {name.lower(): value for name, value in fields.items() if bytes(value) != b"null"}


def _candidate(
    url: str, node: str, raw: msgspec.Raw, keys: Mapping[str, str]
) -> PreemptionCandidate:
    fields = _fields(url, raw)
    uids = [
        _decoded(url, _fields(url, pod).get("uid"), _TEXT, "")
        for pod in _decoded(url, fields.get("pods"), _LIST, [])
    ]
    violations = _decoded(url, fields.get("numpdbviolations"), _NUMBER, 0)
    victims = tuple(Victim(keys.get(uid, ""), uid) for uid in uids)
    return PreemptionCandidate(node, victims, violations)
