"""Anchors: copies of signed heads where a writer of the database cannot change them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from asched.proof import ProofError
from asched.proof.heads import SignedHead

ANNOTATION: Final = "asched.dev/journal-head"
"""Annotation of the Lease that holds the newest signed head. A replica with a journal of its own
adds a dot and its host name."""

_LINE_LIMIT_BYTES: Final = 16 * 1024


class Anchor(Protocol):
    """A place that keeps signed heads outside the database.

    The methods raise :class:`AnchorError` if it cannot be reached.
    """

    @property
    def name(self) -> str:
        """For messages, such as the path of a file."""

    async def newest(self) -> SignedHead | None:
        """The last head that was published."""

    async def is_missing(self) -> bool:
        """Whether what holds the heads was removed, or never created."""

    async def create(self) -> None:
        """Create what holds the heads, empty, unless it is there."""

    async def publish(self, head: SignedHead) -> None:
        """Store a head, durably on return."""


class AnchorError(Exception):
    """An anchor cannot be read or written; the text is one line."""


class AnchorFile:
    """Signed heads in a file, a line each. Only ever appended to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        return f"anchor file {self.path}"

    def append(self, head: SignedHead) -> None:
        """Raises :class:`AnchorError`."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            descriptor = os.open(self.path, flags, 0o644)
            try:
                torn = _last_byte(descriptor) not in (b"", b"\n")
                # A line that an interrupted write left incomplete is ended, and ignored later.
                line = b"\n" * torn + head.line.encode() + b"\n"
                if os.write(descriptor, line) < len(line):
                    raise AnchorError(f"{self.path}: the head was written in part only")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise AnchorError(f"{self.path}: cannot write the head: {error.strerror}") from None

    def create(self) -> None:
        """Create an empty file unless there is one. Raises :class:`AnchorError`."""
        try:
            self.path.touch(0o644)
        except OSError as error:
            raise AnchorError(f"{self.path}: cannot create the file: {error.strerror}") from None

    def last(self) -> SignedHead | None:
        """The newest head; None if the file does not exist or is empty.

        Raises :class:`AnchorError`, also without the file's directory: its storage is not mounted.
        """
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - 2 * _LINE_LIMIT_BYTES))
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            if not self.path.parent.is_dir():
                raise AnchorError(
                    f"{self.path}: cannot read heads: its directory does not exist"
                ) from None
            return None
        except OSError as error:
            raise AnchorError(f"{self.path}: cannot read heads: {error.strerror}") from None
        for line in reversed(lines):
            try:
                return SignedHead.parse(line)
            except ProofError:
                continue
        if size:
            raise AnchorError(f"{self.path}: its last lines are not signed heads")
        return None


def _last_byte(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, 1, size - 1) if size else b""


class _Metadata(msgspec.Struct):
    annotations: dict[str, str] = {}


class _Lease(msgspec.Struct):
    kind: str
    metadata: _Metadata


def read_anchors(path: Path) -> list[SignedHead]:
    """All heads in an anchor file, or in a Lease that was saved as JSON.

    Raises :class:`AnchorError` naming the line, also if there is no head.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise AnchorError(f"{path}: cannot read heads: {error.strerror}") from None
    heads = _of_lease(path, content)
    if heads is None:
        heads = _of_lines(path, content.split(b"\n"))
    if not heads:
        raise AnchorError(f"{path}: contains no signed head")
    return heads


def _of_lease(path: Path, content: bytes) -> list[SignedHead] | None:
    try:
        lease = msgspec.json.decode(content, type=_Lease)
    except (msgspec.DecodeError, RecursionError):
        return None
    return heads_of(lease.metadata.annotations, str(path))


def heads_of(annotations: dict[str, str], source: str) -> list[SignedHead]:
    """The heads in the annotations of a Lease. Raises :class:`AnchorError`."""
    try:
        return [
            SignedHead.parse(text)
            for name, text in annotations.items()
            if name.startswith(ANNOTATION)
        ]
    except ProofError as error:
        raise AnchorError(f"{source}: annotation {ANNOTATION}: {error}") from None


def _of_lines(path: Path, lines: Sequence[bytes]) -> list[SignedHead]:
    heads: list[SignedHead] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            heads.append(SignedHead.parse(line))
        except ProofError as error:
            if not _is_torn(line):
                raise AnchorError(f"{path}:{number}: {error}") from None
    return heads


def _is_torn(line: bytes) -> bool:
    """Whether an interrupted write may have left this beginning of a line."""
    try:
        msgspec.json.decode(line)
    except msgspec.DecodeError:
        return line.startswith(b'{"head"')
    except RecursionError:
        return False
    return False
