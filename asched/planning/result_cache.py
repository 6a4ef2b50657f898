"""Files with results: a folder for those of work items, and single files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec

from asched.planning.errors import ExecutionError
from asched.planning.items import WorkAnswer


def write_or_remove(file: Path, content: bytes) -> None:
    """Writes a file; if that fails in the middle, as on a full disk, no part of it is left.

    Unlike a renamed file, it may be a device, and keeps its permissions. Raises OSError.
    """
    with file.open("wb", buffering=0) as opened:
        left = memoryview(content)
        try:
            while left:
                left = left[opened.write(left) :]
        except OSError:
            if file.is_file():
                file.unlink()
            raise


class ResultCache:
    """One file for each result, named by :func:`~asched.planning.items.item_key`.

    Several processes can use one folder. A file is complete or absent.
    """

    def __init__(self, folder: Path) -> None:
        """Creates the folder. Raises ExecutionError if that is not possible."""
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._error("created", error) from None

    def get(self, key: str) -> WorkAnswer | None:
        """The stored result; None if there is none, or if its file is damaged."""
        try:
            return msgspec.json.decode(self._file(key).read_bytes(), type=WorkAnswer)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        except OSError as error:
            raise self._error("read", error) from None

    def put(self, key: str, answer: WorkAnswer) -> None:
        """Stores a result. Raises ExecutionError with nothing stored, such as for a full disk."""
        name = ""
        try:
            with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as file:
                name = file.name
                file.write(msgspec.json.encode(answer))
            os.replace(name, self._file(key))
        except OSError as error:
            if name:
                Path(name).unlink(missing_ok=True)
            raise self._error("written", error) from None

    def _file(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def _error(self, done: str, error: OSError) -> ExecutionError:
        reason = error.strerror or str(error)
        return ExecutionError(f"the results folder {self.folder} cannot be {done}: {reason}")
