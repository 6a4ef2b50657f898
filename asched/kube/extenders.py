"""Client for HTTP extenders: the wire format of ``k8s.io/kube-scheduler/extender/v1``.

The Go types have no JSON names, so fields are written as in Go (``NodeNames``) and read case
insensitively, as by Go's decoder. Requests go to the configured URL only: no redirects, no proxy,
no retries. ``tlsConfig`` and ``enableHTTPS`` have client-go's meaning.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar

import anyio
import msgspec

from asched.config.kube_scheduler import Extender, ExtenderTLS, in_call_order
from asched.framework.cluster import PodRef
from asched.framework.runtime.extenders import PreemptionCandidate, redacted_url
from asched.kube.connection import KEEPALIVE_S, USER_AGENT, client_tls_context
from asched.kube.errors import KubeConfigError, one_line
from asched.model.meta import ApiStruct
from asched.model.nesting import decode_any_depth
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.quantity import MAX_INT64, MIN_INT64

if TYPE_CHECKING:
    import aiohttp


class ExtenderTlsContext(NamedTuple):
    """The TLS parameters of connections to one extender."""

    context: ssl.SSLContext
    server_name: str | None
    """Expected name in the certificate; None: the host of the URL."""


def tls_settings(extender: Extender) -> ExtenderTlsContext | None:
    """None for the system's certificate authorities. Data takes precedence over files. Unlike in
    kube-scheduler only ``insecure`` disables verification. Raises KubeConfigError."""
    tls = extender.tls_config or ExtenderTLS()
    has_ca = bool(tls.ca_file or tls.ca_data)
    if tls == ExtenderTLS():
        return None
    where = f"extender {redacted_url(extender.url_prefix)}"
    if tls.insecure and has_ca:
        raise KubeConfigError(
            f"{where}: a certificate authority and insecure are mutually exclusive"
        )
    try:
        context = _context(tls)
    except (OSError, ValueError) as error:
        what = one_line(error)
        files = [file for file in (tls.ca_file, tls.cert_file, tls.key_file) if file]
        if files:
            # The system's errors do not name the file.
            what += f" ({', '.join(files)})"
        raise KubeConfigError(f"{where}: tlsConfig: {what}") from None
    return ExtenderTlsContext(context, tls.server_name or None)


def _context(tls: ExtenderTLS) -> ssl.SSLContext:
    data = tls.ca_data.decode()
    context = client_tls_context("" if data else tls.ca_file, data, verify=not tls.insecure)
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
    """A private temporary file with ``data``, or ``file`` if there is no data."""
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


MAX_RESPONSE_BYTES: Final = 64 * 1024 * 1024
"""5,000 complete nodes are about 50 MiB."""
MAX_CONCURRENT_CALLS: Final = 16
"""Limit per extender. Waiting for a slot is not part of the timeout."""

_PROXY_ERRORS = (502, 504)
"""Statuses of a proxy that got no response from the extender."""

T = TypeVar("T")


class ExtenderError(Exception):
    """The call failed: unreachable, timed out, rejected or malformed. The message is one line."""

    def __init__(self, message: str, *, may_take_effect: bool = False) -> None:
        super().__init__(message)
        self.may_take_effect = may_take_effect
        """Whether the call may be carried out later: it was sent, and the result is unknown."""


class ExtenderNodes:
    """The nodes of several calls. Their JSON is cached: encoding costs more than the rest."""

    def __init__(self, objects: Sequence[Node]) -> None:
        self.objects = objects
        self.names = [node.metadata.name for node in objects]
        self._encoded: dict[bool, msgspec.Raw] = {}

    def encoded(self, *, compact: bool) -> msgspec.Raw:
        """A JSON list of names, if ``compact``, else of complete nodes."""
        known = self._encoded.get(compact)
        if known is None:
            known = msgspec.Raw(msgspec.json.encode(self.names if compact else self.objects))
            self._encoded[compact] = known
        return known


class ExtenderRejection(NamedTuple):
    """Why a node was rejected."""

    message: str
    unresolvable: bool


class ExtenderFilterResult(NamedTuple):
    """The result of the filter verb. The extender did not mention nodes that are in neither."""

    passed: frozenset[str]
    rejected: Mapping[str, ExtenderRejection]


class VictimPods(NamedTuple):
    """A preemption candidate with its victims as pods."""

    candidate: PreemptionCandidate
    pods: Sequence[Pod]


class HttpExtender:
    """One configured extender."""

    def __init__(
        self, config: Extender, session: aiohttp.ClientSession, tls: ExtenderTlsContext | None
    ) -> None:
        self.config = config
        self.name = redacted_url(config.url_prefix)
        self._session = session
        self._tls = tls
        self._slots = anyio.CapacityLimiter(MAX_CONCURRENT_CALLS)
        self.users = 0
        """Blocks of :func:`kept_open`."""
        # As in Kubernetes' component configuration, 0 means the default.
        default_s = Extender("").http_timeout.total_seconds()
        self._timeout_s = config.http_timeout.total_seconds() or default_s

    @property
    def busy(self) -> bool:
        """Whether a call is in progress, waiting or going to be made."""
        slots = self._slots.statistics()
        return bool(self.users or slots.borrowed_tokens or slots.tasks_waiting)

    async def filter(self, pod: Pod, nodes: ExtenderNodes) -> ExtenderFilterResult:
        """Raises :class:`ExtenderError`."""
        url, body = await self._call_with_nodes(self.config.filter_verb, pod, nodes)
        fields = _fields(url, body)
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
        rejected = {name: ExtenderRejection(message, False) for name, message in failed.items()}
        rejected |= {
            name: ExtenderRejection(message, True) for name, message in unresolvable.items()
        }
        return ExtenderFilterResult(frozenset(passed), rejected)

    def _passed(self, url: str, fields: Mapping[str, msgspec.Raw]) -> list[str]:
        if self.config.node_cache_capable and "nodenames" in fields:
            return _decoded(url, fields["nodenames"], _TEXTS, [])
        if "nodes" not in fields:
            return []
        items = _fields(url, fields["nodes"]).get("items")
        return [item.metadata.name for item in _decoded(url, items, _NODES, [])]

    async def prioritize(self, pod: Pod, nodes: ExtenderNodes) -> dict[str, int]:
        """The extender's score by node. Raises :class:`ExtenderError`."""
        url, body = await self._call_with_nodes(self.config.prioritize_verb, pod, nodes)
        scores: dict[str, int] = {}
        for raw in _decoded(url, body, _LIST, []):
            fields = _fields(url, raw)
            host = _decoded(url, fields.get("host"), _TEXT, "")
            score = _decoded(url, fields.get("score"), _NUMBER, 0)
            # As in kube-scheduler, the scores of a repeated host are added.
            scores[host] = min(max(scores.get(host, 0) + score, MIN_INT64), MAX_INT64)
        return scores

    async def preempt(
        self, pod: Pod, candidates: Sequence[VictimPods]
    ) -> tuple[PreemptionCandidate, ...]:
        """The candidates returned; victims are matched by UID. Raises :class:`ExtenderError`."""
        compact = self.config.node_cache_capable
        victims = {about.candidate.node: _victims(about, compact=compact) for about in candidates}
        request = {
            "Pod": with_defaults(pod),
            "NodeNameToVictims": None if compact else victims,
            "NodeNameToMetaVictims": victims if compact else None,
        }
        url, body = await self._call(self.config.preempt_verb, request)
        returned = _fields(url, body).get("nodenametometavictims")
        keys = {
            victim.uid: victim.key for about in candidates for victim in about.candidate.victims
        }
        found = []
        for node, raw in _decoded(url, returned, _MAP, {}).items():
            candidate = _candidate(url, node, raw, keys)
            if candidate.victims:
                found.append(candidate)
            elif not self.config.ignorable:
                raise ExtenderError(f'expected at least one victim pod on node "{node}"')
        return tuple(found)

    async def bind(self, pod: Pod, node_name: str) -> None:
        """After an :class:`ExtenderError` the pod may be bound, or be bound later."""
        meta = pod.metadata
        request = {
            "PodName": meta.name,
            "PodNamespace": meta.namespace,
            "PodUID": meta.uid,
            "Node": node_name,
        }
        url, body = await self._call(self.config.bind_verb, request)
        error = _decoded(url, _fields(url, body).get("error"), _TEXT, "")
        if error:
            raise ExtenderError(error)

    async def _call_with_nodes(
        self, verb: str, pod: Pod, nodes: ExtenderNodes
    ) -> tuple[str, msgspec.Raw]:
        compact = self.config.node_cache_capable
        request = {
            "Pod": with_defaults(pod),
            "Nodes": None if compact else {"metadata": {}, "items": nodes.encoded(compact=False)},
            "NodeNames": nodes.encoded(compact=True) if compact else None,
        }
        return await self._call(verb, request)

    async def _call(self, verb: str, request: dict[str, Any]) -> tuple[str, msgspec.Raw]:
        """The URL for messages, and the body of the response."""
        url = f"{self.config.url_prefix.rstrip('/')}/{verb}"
        import aiohttp

        shown = redacted_url(url)
        async with self._slots:
            # Encoded late: with thousands of nodes it is megabytes, and many calls may wait.
            body = msgspec.json.encode(request)
            try:
                return shown, msgspec.Raw(await self._post(url, shown, verb, body))
            except TimeoutError:
                raise ExtenderError(
                    f'Post "{shown}": no response within {self._timeout_s:g} s',
                    may_take_effect=True,
                ) from None
            except (aiohttp.ClientError, OSError, ValueError) as error:
                never_sent = (aiohttp.ClientConnectorError, aiohttp.InvalidURL)
                sent = not isinstance(error, never_sent)
                message = f'Post "{shown}": {one_line(error)}'
                raise ExtenderError(message, may_take_effect=sent) from None

    async def _post(self, url: str, shown: str, verb: str, body: bytes) -> bytes:
        import aiohttp

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
                    may_take_effect=response.status in _PROXY_ERRORS,
                )
            chunks, size = [], 0
            async for chunk in response.content.iter_any():
                size += len(chunk)
                if size > MAX_RESPONSE_BYTES:
                    raise ExtenderError(
                        f'Post "{shown}": the response is over {MAX_RESPONSE_BYTES} bytes'
                    )
                chunks.append(chunk)
            return b"".join(chunks)


@contextmanager
def kept_open(extenders: Sequence[HttpExtender]) -> Iterator[None]:
    """A block in which these extenders may be called, also after they are replaced."""
    for extender in extenders:
        extender.users += 1
    try:
        yield
    finally:
        for extender in extenders:
            extender.users -= 1


@asynccontextmanager
async def open_extenders(configured: Sequence[Extender]) -> AsyncIterator[tuple[HttpExtender, ...]]:
    """Clients in call order. Raises KubeConfigError if a certificate is unusable."""
    if not configured:
        yield ()
        return
    # A daemon without extenders does without this import, which takes 0.1 s.
    import aiohttp

    made = [(config, tls_settings(config)) for config in in_call_order(configured)]
    # The slots of each extender bound the number of connections.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
    async with aiohttp.ClientSession(
        connector=connector,
        headers={"User-Agent": USER_AGENT},
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    ) as session:
        yield tuple(HttpExtender(config, session, tls) for config, tls in made)


def with_defaults(value: object) -> Any:
    """Plain values with the API's defaults: a Go extender reads a missing field as empty."""
    if isinstance(value, ApiStruct):
        plain = {}
        for field in _fields_of(type(value)):
            own = getattr(value, field.name)
            if own or (own is not None and own != field.default):
                plain[field.encode_name] = with_defaults(own)
        return plain
    if isinstance(value, tuple):
        return [with_defaults(item) for item in value]
    return value


@cache
def _fields_of(struct: type[ApiStruct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Cached: reading the annotations takes longer than reading the values."""
    return msgspec.structs.fields(struct)


def _victims(about: VictimPods, *, compact: bool) -> dict[str, Any]:
    pods: list[Any] = [with_defaults(pod) for pod in about.pods]
    if compact:
        pods = [{"UID": victim.uid} for victim in about.candidate.victims]
    return {"Pods": pods, "NumPDBViolations": about.candidate.pdb_violations}


class _NamedMeta(msgspec.Struct, frozen=True):
    name: str = ""


class _Named(msgspec.Struct, frozen=True):
    """A returned node; only the name is used."""

    metadata: _NamedMeta = _NamedMeta()


_TEXT = msgspec.json.Decoder(str)
_TEXTS = msgspec.json.Decoder(list[str])
_REASONS = msgspec.json.Decoder(dict[str, str])
_NUMBER = msgspec.json.Decoder(Annotated[int, msgspec.Meta(ge=MIN_INT64, le=MAX_INT64)])
_NODES = msgspec.json.Decoder(list[_Named])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_MAP = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _decoded(url: str, raw: msgspec.Raw | None, decoder: msgspec.json.Decoder[T], default: T) -> T:
    """One value of a response; ``default`` if it is absent or null."""
    if raw is None or bytes(raw) == b"null":
        return default
    try:
        return decode_any_depth(decoder, raw)
    except msgspec.DecodeError as error:
        raise ExtenderError(f"cannot decode the response of {url}: {error}") from None


def _fields(url: str, raw: msgspec.Raw) -> dict[str, msgspec.Raw]:
    """The non-null fields of a response by lower-case name."""
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
    victims = tuple(PodRef(keys.get(uid, ""), uid) for uid in uids)
    return PreemptionCandidate(node, victims, violations)
