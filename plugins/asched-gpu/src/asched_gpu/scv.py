"""Scv: what the SCV sniffer reports of a node's cards, one object per node, of the node's name."""

from __future__ import annotations

from typing import ClassVar, Final

from asched.model import CustomDefinition, CustomResource
from asched.model.meta import ApiStruct

HEALTHY: Final = "Healthy"


class Card(ApiStruct):
    """One card as the node reports it."""

    id: int = 0
    health: str = ""
    clock: int = 0
    """Of its memory, MHz."""
    core: int = 0
    bandwidth: int = 0
    power: int = 0
    free_memory: int = 0
    """What is really free, MB."""
    total_memory: int = 0


class ScvStatus(ApiStruct):
    card_list: tuple[Card, ...] = ()
    card_number: int = 0
    free_memory_sum: int = 0
    total_memory_sum: int = 0


class Scv(CustomResource):
    """Without ``updateTime``: a report that says what the one before said is no news."""

    definition: ClassVar[CustomDefinition] = CustomDefinition(
        "core.run-linux.com", "v1", "scvs", "Scv"
    )
    status: ScvStatus = ScvStatus()
