"""An extension of Griffe, which reads the code for mkdocstrings: docstrings become Markdown."""

from __future__ import annotations

from typing import Any

import griffe

from tests.docs.docstring_text import as_markdown


class DocstringRoles(griffe.Extension):
    """Converts every docstring that Griffe reads."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
