"""The base of all records."""

from __future__ import annotations

from typing import dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Record(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, tag=True):
    """Base of all records; the tag ``type`` is the class name."""
