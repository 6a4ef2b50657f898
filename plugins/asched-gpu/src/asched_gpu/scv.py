"""Scv: the report of the SCV sniffer about the cards of a node, one object per node."""

from __future__ import annotations

from typing import ClassVar, Final

from asched.model import ApiStruct, CustomDefinition, CustomResource

HEALTHY: Final = "Healthy"


class Card(ApiStruct):
    """One card of a node."""

    id: int = 0
    health: str = ""
    clock: int = 0
    """Memory clock in MHz."""
    core: int = 0
    bandwidth: int = 0
    power: int = 0
    free_memory: int = 0
    """Unused memory in MB."""
    total_memory: int = 0


class ScvStatus(ApiStruct):
    card_list: tuple[Card, ...] = ()
    card_number: int = 0
    free_memory_sum: int = 0
    total_memory_sum: int = 0


class Scv(CustomResource):
    """A report without ``updateTime``, so that a repeated report is not a change."""

    definition: ClassVar[CustomDefinition] = CustomDefinition(
        "core.run-linux.com", "v1", "scvs", "Scv"
    )
    status: ScvStatus = ScvStatus()
