"""The garbage collector, while a command holds one large state."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def rare_collections() -> Iterator[None]:
    """A state is one large heap almost without cycles: to search it for garbage as often as Python
    does by default takes a fourth of the time of whoever folds a whole journal."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
