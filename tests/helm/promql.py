"""Just enough of PromQL to say which metrics and labels an expression speaks of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_FUNCTIONS: Final = {
    "histogram_quantile", "rate", "increase", "sum", "max", "min", "avg", "avg_over_time",
    "min_over_time", "max_over_time", "label_values",
}  # fmt: skip
_WORDS: Final = {"by", "without", "and", "or", "unless", "on", "ignoring"}
_TOKEN: Final = re.compile(
    r"""(?P<name>[a-zA-Z_:][\w:]*)|(?P<matchers>\{[^}]*\})|(?P<range>\[[^\]]*\])"""
    r"""|(?P<number>\d+(\.\d+)?)|(?P<other>[()<>=!,+*/-])|(?P<space>\s+)"""
)
_MATCHER: Final = re.compile(r'\s*([a-z_]+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"\s*')


class Use(NamedTuple):
    """A metric as an expression asks for it."""

    metric: str
    matchers: dict[str, str]
    """Values, or regular expressions of them, by label."""
    is_range: bool


class Query(NamedTuple):
    uses: list[Use]
    grouped_by: set[str]


def parsed(expression: str) -> Query:
    """Raises ValueError for what is not understood."""
    tokens = [*_tokens(expression)]
    uses: list[Use] = []
    grouped: set[str] = set()
    depth = index = 0
    while index < len(tokens):
        kind, text = tokens[index]
        depth += (text == "(") - (text == ")")
        if depth < 0:
            raise ValueError(f"unbalanced: {expression}")
        if kind == "name" and text in ("by", "without", "on", "ignoring"):
            end = tokens.index(("other", ")"), index)
            grouped |= {word for what, word in tokens[index + 2 : end] if what == "name"}
            index = end
        elif kind == "name" and text not in _FUNCTIONS | _WORDS:
            following = [*tokens[index + 1 : index + 3], ("", ""), ("", "")]
            matchers = _matchers(following[0][1]) if following[0][0] == "matchers" else {}
            is_range = "range" in (following[0][0], following[1][0] if matchers else "")
            uses.append(Use(text, matchers, is_range))
        index += 1
    if depth or not uses:
        raise ValueError(f"unbalanced, or about no metric: {expression}")
    return Query(uses, grouped)


def _tokens(expression: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(expression):
        found = _TOKEN.match(expression, at)
        if found is None:
            raise ValueError(f"not understood at {expression[at : at + 20]!r}")
        at = found.end()
        assert found.lastgroup is not None
        kind = next(name for name, text in found.groupdict().items() if text is not None)
        if kind != "space":
            yield kind, found.group()


def _matchers(text: str) -> dict[str, str]:
    inner = text[1:-1]
    found = {m.group(1): m.group(3) for m in _MATCHER.finditer(inner)}
    if re.sub(_MATCHER, "", inner).strip(" ,"):
        raise ValueError(f"not understood: {text}")
    return found
