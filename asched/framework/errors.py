"""What is raised across the framework, apart from the modules that raise it."""

from __future__ import annotations


class ProfileError(ValueError):
    """A profile cannot be built; the message says which plugin or argument and why."""


class ExtenderInterruption(Exception):  # noqa: N818  neither is an error of the plugin it passes
    """What passes through a plugin that asked extenders."""
