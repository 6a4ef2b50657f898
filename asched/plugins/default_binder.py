"""DefaultBinder: bind a pod by posting its Binding to the API server."""

from __future__ import annotations

from math import inf
from typing import ClassVar

from asched.framework.binding import BindingClient
from asched.framework.interface import BindPlugin
from asched.framework.pod_info import PodInfo
from asched.framework.status import Status


class DefaultBinder(BindPlugin):
    """Binds every pod that no earlier bind plugin took."""

    name: ClassVar[str] = "DefaultBinder"
    api_version: ClassVar[int] = 1

    @property
    def time_limit_s(self) -> float:
        return inf  # all it does is our own: nothing that could hang

    async def bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        return await client.bind(pod, node_name)
