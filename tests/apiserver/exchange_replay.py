"""Replays recorded API exchanges against the embedded server and compares responses.

What differs from run to run (uids, generated names, resourceVersions, the clock) is mapped: the
first time that a recorded value meets ours fixes the pair, and every later meeting must agree.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode

_TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")
_FIXED_TIME = "2026-01-01T"
"""Times in recorded requests; all others are from the server's clock."""
_NUMBER_IN_PARENTHESES = re.compile(r"\(\d+\)$|current: \d+$")


def decoded_token(token: str) -> dict[str, Any]:
    padded = token + "=" * (-len(token) % 4)
    decoded: dict[str, Any] = json.loads(base64.urlsafe_b64decode(padded))
    return decoded


def encoded_token(token: dict[str, Any]) -> str:
    text = json.dumps(token, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


@dataclass
class Correspondence:
    """Maps recorded values to those of this run."""

    texts: dict[str, str] = field(default_factory=dict)
    """uids and generated names."""
    revisions: dict[int, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def meet_text(self, recorded: str, ours: str, path: str) -> None:
        if self.texts.setdefault(recorded, ours) != ours:
            self.problems.append(f"{path}: {ours!r} where {self.texts[recorded]!r} was before")

    def meet_revision(self, recorded: str, ours: str, path: str) -> None:
        left, right = int(recorded), int(ours)
        if self.revisions.setdefault(left, right) != right:
            known = self.revisions[left]
            self.problems.append(f"{path}: revision {right}, but {left} was {known} before")
        for other, mapped in self.revisions.items():
            if (other < left) != (mapped < right) and other != left:
                self.problems.append(f"{path}: order of revisions {other} and {left} differs")

    def revision(self, recorded: int) -> int:
        """The revision of this run for a recorded one; unknown ones are unchanged."""
        return self.revisions.get(recorded, recorded)

    def translate(self, text: str) -> str:
        for recorded, ours in self.texts.items():
            text = text.replace(recorded, ours)
        return text

    def compare(self, recorded: Any, ours: Any, path: str = "") -> None:
        """Collect differences except those between runs."""
        if isinstance(recorded, dict) and isinstance(ours, dict):
            self._compare_objects(recorded, ours, path)
        elif isinstance(recorded, list) and isinstance(ours, list):
            if len(recorded) != len(ours):
                self.problems.append(f"{path}: {len(ours)} elements, recorded {len(recorded)}")
            for index, (left, right) in enumerate(zip(recorded, ours, strict=False)):
                self.compare(left, right, f"{path}[{index}]")
        elif isinstance(recorded, str) and isinstance(ours, str):
            self._compare_texts(recorded, ours, path)
        elif recorded != ours or type(recorded) is not type(ours):
            self.problems.append(f"{path}: {ours!r}, recorded {recorded!r}")

    def _compare_objects(self, recorded: dict[str, Any], ours: dict[str, Any], path: str) -> None:
        for key in sorted((recorded.keys() | ours.keys()) - {"managedFields"}):
            here = f"{path}.{key}"
            if key not in ours:
                self.problems.append(f"{here}: missing, recorded {recorded[key]!r}")
            elif key not in recorded:
                self.problems.append(f"{here}: {ours[key]!r}, not recorded")
            elif key == "resourceVersion":
                self.meet_revision(recorded[key], ours[key], here)
            elif key == "uid" or (key == "name" and "generateName" in recorded):
                self.meet_text(recorded[key], ours[key], here)
            elif key == "continue":
                self._compare_tokens(recorded[key], ours[key], here)
            else:
                self.compare(recorded[key], ours[key], here)

    def _compare_tokens(self, recorded: str, ours: str, path: str) -> None:
        left, right = decoded_token(recorded), decoded_token(ours)
        if left["rv"] < 0:
            self.compare(left["rv"], right["rv"], f"{path}.rv")
        else:
            self.meet_revision(str(left["rv"]), str(right["rv"]), f"{path}.rv")
        self.compare(left["v"], right["v"], f"{path}.v")
        self.compare(left["start"], right["start"], f"{path}.start")

    def _compare_texts(self, recorded: str, ours: str, path: str) -> None:
        if _TIME.match(recorded) and not recorded.startswith(_FIXED_TIME):
            if not _TIME.match(ours):
                self.problems.append(f"{path}: {ours!r} is no time, recorded {recorded!r}")
            return
        expected = self.translate(recorded)
        if _NUMBER_IN_PARENTHESES.search(expected):
            # The server's own current or oldest revision.
            expected = _NUMBER_IN_PARENTHESES.sub("", expected)
            ours = _NUMBER_IN_PARENTHESES.sub("", ours)
        if expected != ours:
            self.problems.append(f"{path}: {ours!r}, recorded {expected!r}")

    # --- requests ------------------------------------------------------------------------------

    def path(self, recorded: str) -> str:
        """A recorded path and query with the revisions and names of this run."""
        path, _, query = self.translate(recorded).partition("?")
        pairs = []
        for key, value in parse_qsl(query, keep_blank_values=True):
            if key == "resourceVersion" and value.isdecimal():
                value = str(self.revision(int(value)))
            elif key == "continue" and value.startswith("ey"):
                token = decoded_token(value)
                token["rv"] = self.revision(token["rv"])
                token["start"] = self.translate(token["start"])
                value = encoded_token(token)
            elif key == "timeoutSeconds":
                value = "1"
            pairs.append((key, value))
        return f"{path}?{urlencode(pairs)}" if pairs else path

    def body(self, recorded: Any) -> bytes | None:
        """A recorded body with the revisions and uids of this run."""
        if recorded is None:
            return None
        if isinstance(recorded, str):
            return recorded.encode()
        text = self.translate(json.dumps(recorded))
        body = json.loads(text)
        metadata = body.get("metadata") if isinstance(body, dict) else None
        if metadata and "resourceVersion" in metadata:
            metadata["resourceVersion"] = str(self.revision(int(metadata["resourceVersion"])))
        return json.dumps(body).encode()
