"""What a session asks of volumes before it places a pod."""

from __future__ import annotations

from typing import Protocol

from asched.framework.session_objects import Task


class VolumeClaims(Protocol):
    """Both answer why it cannot be done, or nothing."""

    def reserve(self, task: Task, node: str) -> str:
        """Set the task's volumes aside on the node."""

    def bind(self, task: Task) -> str:
        """Bind what was set aside."""


class NoVolumes:
    """Whatever is asked can be had."""

    def reserve(self, task: Task, node: str) -> str:
        return ""

    def bind(self, task: Task) -> str:
        return ""
