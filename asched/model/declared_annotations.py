"""The annotations of pods that plugins declare to read: they are kept, all others never are."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from asched.model.pod import Pod
from asched.model.resources import DecodeError


class DeclaredAnnotations:
    """Reads just the declared annotations out of a pod's JSON.

    Most pods have none of them. That they have not is found by looking for their names in the bytes,
    so that what nobody uses costs next to nothing.
    """

    def __init__(self, keys: Collection[str]) -> None:
        names = sorted(set(keys))
        self._needles = [key.encode() for key in names]
        fields = [
            (f"f{number}", str | None, msgspec.field(default=None, name=key))
            for number, key in enumerate(names)
        ]
        kept = msgspec.defstruct("Kept", fields, omit_defaults=True, gc=False)
        meta = msgspec.defstruct("Meta", [("annotations", kept | None, None)], gc=False)
        pod = msgspec.defstruct("PodWithMeta", [("metadata", meta | None, None)], gc=False)
        self._decoder = msgspec.json.Decoder(pod)

    def kept(self, pod: Pod, raw: bytes | msgspec.Raw) -> Pod:
        """The pod, decoded from ``raw`` already, with its declared annotations. Raises
        :class:`DecodeError` where one of them is no text."""
        text = bytes(raw)
        if not any(needle in text for needle in self._needles):
            return pod
        try:
            found = msgspec.to_builtins(self._decoder.decode(text))
        except msgspec.DecodeError as error:
            raise DecodeError(f"{pod.key}: {error}") from None
        annotations: dict[str, str] = (found["metadata"] or {}).get("annotations") or {}
        if not annotations:
            return pod
        metadata = msgspec.structs.replace(pod.metadata, declared_annotations=annotations)
        return msgspec.structs.replace(pod, metadata=metadata)
