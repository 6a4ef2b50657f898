"""HTML and SVG that cannot be broken by what is written into it.

Text becomes :data:`Html` in two ways only: escaped by :func:`text`, or as a tag around other
:data:`Html`. So the type checker finds whatever would go onto a page as it came.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Final, NewType

Html = NewType("Html", str)

_VOID: Final = frozenset({"meta"})

NOTHING: Final = Html("")


def text(plain: object) -> Html:
    """Any text, to be read as text."""
    return Html(html.escape(str(plain)))


def tag(name: str, /, *children: Html, **attributes: object) -> Html:
    """An element. ``class_`` stands for ``class``, ``stroke_width`` for ``stroke-width``."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"' for key, value in attributes.items()
    )
    if name in _VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{''.join(children)}</{name}>")


def joined(parts: Iterable[Html]) -> Html:
    return Html("".join(parts))
