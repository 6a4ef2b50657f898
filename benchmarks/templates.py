"""Templates of workload definitions: YAML with a subset of Go's text/template."""

from __future__ import annotations

import copy
import math
import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from benchmarks.kinds import Json
from benchmarks.workload_files import WorkloadError

_EXPRESSION = re.compile(r"\{\{\s*(.+?)\s*\}\}")
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_FUNCTIONS: dict[str, Callable[[float, float], float]] = {
    "AddInt": lambda a, b: int(a + b),
    "SubtractInt": lambda a, b: int(a - b),
    "MultiplyInt": lambda a, b: int(a * b),
    "DivideInt": lambda a, b: int(a / b),
    "AddFloat": operator.add,
    "SubtractFloat": operator.sub,
    "MultiplyFloat": operator.mul,
    "DivideFloat": operator.truediv,
    "Mod": lambda a, b: int(math.fmod(int(a), int(b))),
}
"""The template functions of scheduler_perf."""


class Template:
    """Renders objects from one file, which may contain ``{{.Index}}`` and ``{{.Count}}``."""

    def __init__(self, path: Path) -> None:
        """Raises :class:`WorkloadError` if the file cannot be read."""
        self._path = path
        try:
            self._text = path.read_text()
        except OSError as error:
            raise WorkloadError(f"{path}: {error.strerror}") from None
        self._constant = None if _EXPRESSION.search(self._text) else self._parsed(self._text)

    def render(self, index: int, count: int) -> Json:
        """The object with index ``index`` (from 0) of ``count``. Raises :class:`WorkloadError`."""
        if self._constant is not None:
            return copy.deepcopy(self._constant)
        values: dict[str, float] = {".Index": index, ".Count": count}
        return self._parsed(
            _EXPRESSION.sub(lambda found: self._value(found.group(1), values), self._text)
        )

    def _value(self, expression: str, values: dict[str, float]) -> str:
        words = expression.split()
        try:
            if len(words) == 1:
                return str(values[words[0]])
            name, left, right = words
            return str(_FUNCTIONS[name](_number(left, values), _number(right, values)))
        except (KeyError, ValueError, ZeroDivisionError):
            raise WorkloadError(f"{self._path}: cannot evaluate {{{{{expression}}}}}") from None

    def _parsed(self, text: str) -> Json:
        try:
            parsed = yaml.load(text, _LOADER)
        except yaml.YAMLError as error:
            raise WorkloadError(f"{self._path}: {error}") from None
        if not isinstance(parsed, dict):
            raise WorkloadError(f"{self._path}: does not contain an object")
        return parsed


def _number(word: str, values: dict[str, float]) -> float:
    return values[word] if word.startswith(".") else float(word)
