"""What the processes of a server import, for the process that forks them."""

from __future__ import annotations

import tests.ui.forked_lab
import tests.ui.serving  # noqa: F401
from asched.config.registry import PluginRegistry

_registry = PluginRegistry.discover()
for _name in _registry.names:
    _registry.load(_name)
