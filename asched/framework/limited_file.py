"""Files that somebody else wrote, read up to a size: what is larger is a mistake, or meant to be one."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

CONFIG_LIMIT_BYTES: Final = 8 * 1024 * 1024
"""Of configurations, kubeconfigs and certificates. Kubernetes itself allows a ConfigMap 1 MiB."""


def read_limited(path: Path, limit_bytes: int = CONFIG_LIMIT_BYTES) -> bytes:
    """The content of a file. Raises OSError, with EFBIG for one of more than ``limit_bytes``."""
    with path.open("rb") as file:
        # Not the size that the file system tells: a device or a pipe has none.
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise OSError(errno.EFBIG, f"larger than {limit_bytes} bytes", str(path))
    return content
