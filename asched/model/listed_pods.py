"""Decodes the pods of lists. Those of one template share their specification.

Pods of a template have the same ``spec`` but for the node and the random name of the token volume
that the API server adds. Lists are sorted by name, so these pods are neighbours: most pods of a
large list take the specification of the one before instead of decoding their own.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

from asched.model.meta import ObjectMeta
from asched.model.pod import Pod, PodSpec, PodStatus, reduced_pod
from asched.model.resources import Resource, checked_pod, decode, without_irrelevant_volumes

_NODE: Final = b'"nodeName":"'
_TOKEN: Final = b'"kube-api-access-'
_NAMES: Final = re.compile(rb"[\w.-]*", re.ASCII)
_SPEC: Final = msgspec.json.Decoder(PodSpec)
_replace = msgspec.structs.replace


class _Parts(msgspec.Struct, gc=False):
    metadata: ObjectMeta = ObjectMeta()
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: PodStatus = PodStatus()


_PARTS: Final = msgspec.json.Decoder(_Parts)


class _SpecForm(NamedTuple):
    """The JSON of a specification around the names of the token volume and the node."""

    before: tuple[bytes, ...]
    """What surrounds the names of the token volume, up to the name of the node."""
    after: tuple[bytes, ...]
    """The same, from the name of the node on."""
    token_bytes: int
    """Length of the name of the token volume; 0 without one."""

    @classmethod
    def of(cls, text: bytes) -> _SpecForm:
        # A quote within a string is escaped, so what is found here begins a string.
        begin = text.find(_TOKEN) + 1
        token = text[begin : text.find(b'"', begin)] if begin else b""
        begin = text.find(_NODE)
        before = text if begin < 0 else text[: begin + len(_NODE)]
        after = text[text.find(b'"', len(before)) :] if begin >= 0 else b""
        if not token:
            return cls((before,), (after,), 0)
        return cls(tuple(before.split(token)), tuple(after.split(token)), len(token))

    def filled(self, token: bytes, node: bytes) -> bytes:
        return token.join(self.before) + node + token.join(self.after)

    def node_in(self, text: bytes) -> bytes | None:
        """The name of the node in a specification of this form; None if it has another form."""
        begin = len(self.before[0])
        token = text[begin : begin + self.token_bytes]
        begin = sum(map(len, self.before)) + len(token) * (len(self.before) - 1)
        node = text[begin : text.find(b'"', begin)]
        if not _NAMES.fullmatch(token + node) or self.filled(token, node) != text:
            return None
        return node


class ListedPodDecoder:
    """Decodes pods as :func:`~asched.model.resources.decode`, but without statuses that are not
    recorded. Faster if neighbours are of one template."""

    def __init__(self) -> None:
        self._form: _SpecForm | None = None
        """Of the pod before."""
        self._shared: PodSpec | None = None
        """What every specification of this form is decoded to but for its node; None if unknown."""

    def decode(self, raw: bytes | msgspec.Raw) -> Pod:
        """Raises :class:`~asched.model.resources.DecodeError`."""
        shared = self._shared
        try:
            parts = _PARTS.decode(raw)
            text = bytes(parts.spec)
            node = None if shared is None or self._form is None else self._form.node_in(text)
            if shared is None or node is None:
                spec = _SPEC.decode(text)
            else:
                spec = _replace(shared, node_name=node.decode())
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            decoded = decode(Resource.PODS, raw)
            assert isinstance(decoded, Pod)
            return decoded
        pod = Pod(metadata=parts.metadata, spec=spec, status=parts.status)
        pod = checked_pod(pod, len(raw), checked_spec=node is not None)
        if node is None:
            self._note(text, pod.spec)
        return _reduced(pod)

    def _note(self, text: bytes, spec: PodSpec) -> None:
        """Share the specification of the second of two neighbours with the same form."""
        form = _SpecForm.of(text)
        same, self._form, self._shared = form == self._form, form, None
        if not same:
            return
        # The names must not matter: they may be part of another field, too.
        try:
            other = without_irrelevant_volumes(_SPEC.decode(form.filled(b"", b"")))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        node = form.node_in(text)
        if node is None or other.node_name:
            return
        if _replace(other, node_name=node.decode()) == spec:
            self._shared = other


def _reduced(pod: Pod) -> Pod:
    """The pod as :func:`~asched.model.pod.reduced_pod` returns it, if that depends on the pod only
    and leaves no condition. It takes less memory while the list waits."""
    status = pod.status
    # Gates determine whether pod-level resources are kept, and statuses may repeat these.
    if pod.spec.resources is not None or status.resources is not None:
        return pod
    if status.allocated_resources:
        return pod
    reduced = reduced_pod(pod)
    # The message of a condition is read in shadow mode.
    return pod if reduced.status.conditions else reduced
