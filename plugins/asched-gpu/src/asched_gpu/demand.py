"""GPU requests of pods, in the notation of the openb trace."""

from __future__ import annotations

from typing import Final, NamedTuple

from asched.framework import PodShape

GPU_MILLI: Final = "alibabacloud.com/gpu-milli"
"""Resource of cards, in thousandths of a card: the total request of a pod."""
GPU_COUNT: Final = "alibabacloud.com/gpu-count"
"""Annotation with the number of cards, which provide equal shares."""
GPU_INDEX: Final = "alibabacloud.com/gpu-index"
"""Annotation with the assigned cards, such as ``0`` or ``2-3``."""
GPU_MODEL: Final = "alibabacloud.com/gpu-card-model"
"""Node label with the model of its cards."""
MILLI: Final = 1000


class Demand(NamedTuple):
    """A request for ``milli`` thousandths of each of ``cards`` cards of one node, with cpu."""

    cards: int
    milli: int
    cpu_milli: int = 0

    @property
    def total(self) -> int:
        return self.cards * self.milli


class DemandError(ValueError):
    """A GPU request is invalid."""


def demand_of(shape: PodShape) -> Demand:
    """The request of pods of this shape; ``cards`` is 0 for a pod without cards.

    Without the annotation :data:`GPU_COUNT`, up to 1000 is a share of one card, and more are whole
    cards. Raises :class:`DemandError` if a share is not a whole number or exceeds a card.
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
    """The value of :data:`GPU_INDEX` for these cards."""
    return "-".join(map(str, cards))


def index_of(text: str) -> tuple[int, ...] | None:
    """The cards in a value of :data:`GPU_INDEX`; None if it is not a list of numbers."""
    parts = text.split("-")
    if not all(part.isascii() and part.isdecimal() and len(part) < 4 for part in parts):
        return None
    cards = tuple(map(int, parts))
    return cards if len(set(cards)) == len(cards) else None
