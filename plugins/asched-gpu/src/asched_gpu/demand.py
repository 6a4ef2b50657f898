"""What a pod asks of graphics cards, in the forms of the openb trace."""

from __future__ import annotations

from typing import Final, NamedTuple

from asched.framework.pod_info import PodShape

GPU_MILLI: Final = "alibabacloud.com/gpu-milli"
"""The resource that cards are counted in, in thousandths of a card: what a pod asks for in all."""
GPU_COUNT: Final = "alibabacloud.com/gpu-count"
"""The annotation that says on how many cards: each gives the same share."""
GPU_INDEX: Final = "alibabacloud.com/gpu-index"
"""The annotation that says which cards a pod was given, such as ``0`` or ``2-3``."""
GPU_MODEL: Final = "alibabacloud.com/gpu-card-model"
"""The node label that names the model of its cards."""
MILLI: Final = 1000


class Demand(NamedTuple):
    """``milli`` thousandths of each of ``cards`` cards of one node, and cpu beside them."""

    cards: int
    milli: int
    cpu_milli: int = 0

    @property
    def total(self) -> int:
        return self.cards * self.milli


class DemandError(ValueError):
    """A pod asks for what no cards can give; the text says why."""


def demand_of(shape: PodShape) -> Demand:
    """What pods of this shape ask for; ``cards`` is 0 for a pod without cards.

    Without the annotation :data:`GPU_COUNT` up to a thousand is a share of one card, and more are
    whole cards. Raises :class:`DemandError` where a share would not be whole, or more than a card.
    """
    requests = shape.requests
    cpu, milli = requests.get("cpu", 0), requests.get(GPU_MILLI, 0)
    if not milli:
        return Demand(0, 0, cpu)
    text = shape.annotations.get(GPU_COUNT)
    cards = _count(text) if text is not None else -(-milli // MILLI)
    share, rest = divmod(milli, cards)
    if rest or share > MILLI:
        raise DemandError(
            f"{milli} of {GPU_MILLI} on {cards} cards: no whole share of 1 to {MILLI}"
        )
    return Demand(cards, share, cpu)


def _count(text: str) -> int:
    if text.isascii() and text.isdecimal() and 0 < int(text) <= MILLI:
        return int(text)
    raise DemandError(f"annotation {GPU_COUNT}: expected a number of cards, got {text!r}")


def index_text(cards: tuple[int, ...]) -> str:
    """Cards as :data:`GPU_INDEX` names them."""
    return "-".join(map(str, cards))


def index_of(text: str) -> tuple[int, ...] | None:
    """The cards that :data:`GPU_INDEX` names, None where it is no list of numbers."""
    parts = text.split("-")
    if not all(part.isascii() and part.isdecimal() and len(part) < 4 for part in parts):
        return None
    cards = tuple(map(int, parts))
    return cards if len(set(cards)) == len(cards) else None
