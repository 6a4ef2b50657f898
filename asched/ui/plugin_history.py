"""The profiles and the circuits of their plugins after any record, without a fold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from asched.framework.runtime.profile import ProfileSpec
from asched.state.cluster import ClusterState

PROFILES: Final = "profiles"
CIRCUITS: Final = "circuits"


class ProfileFacts(msgspec.Struct, frozen=True, array_like=True):
    """A recorded profile."""

    spec: ProfileSpec
    missing: str
    """Why it is folded without some of its plugins; empty if it has them."""


class CircuitFacts(msgspec.Struct, frozen=True, array_like=True):
    """The circuit breaker of a plugin."""

    profile: str
    plugin: str
    failures: int
    """Within its window."""
    open_until_ns: int
    """On the clock of the wall; 0 while it is closed."""
    on_trial: bool


class PluginFacts(NamedTuple):
    """What a report of the plugins needs."""

    profiles: tuple[ProfileFacts, ...]
    circuits: tuple[CircuitFacts, ...]

    @classmethod
    def of(cls, state: ClusterState) -> PluginFacts:
        return cls(_profiles(state), _circuits(state))


def _profiles(state: ClusterState) -> tuple[ProfileFacts, ...]:
    return tuple(
        ProfileFacts(profile.spec, str(profile.missing))
        for _, profile in sorted(state.profiles.items())
    )


def _circuits(state: ClusterState) -> tuple[CircuitFacts, ...]:
    offset_ns = state.engine.clock_offset_ns
    return tuple(
        CircuitFacts(
            name,
            plugin,
            len(circuit.failed_at_ns),
            circuit.open_until_ns + offset_ns if circuit.is_open else 0,
            circuit.on_trial,
        )
        for name, plugin, circuit in state.guards.circuits
    )


class StoredPluginFacts(NamedTuple):
    """What holds from a record on."""

    kind: str
    """:data:`PROFILES` or :data:`CIRCUITS`."""
    seq: int
    form: bytes


class PluginHistory:
    """Profiles and circuits by record."""

    def __init__(self, load: Callable[[str, int], bytes | None] | None = None) -> None:
        """``load`` returns the last stored form of a kind up to a record."""
        self.unsaved: list[StoredPluginFacts] = []
        """The owner of the file clears it."""
        self._load = load
        self._last: dict[str, Any] = {}
        self._built: object = None
        """The profiles that are known: they are replaced, never changed."""

    def begin(self, seq: int, state: ClusterState) -> None:
        """Continue after record ``seq``; ``state`` is the one after it."""
        self._built = None
        self.apply(seq, state)

    def apply(self, seq: int, state: ClusterState) -> None:
        """Add a record; ``state`` is the one after it."""
        if state.profiles is not self._built:
            self._built = state.profiles
            self._note(PROFILES, seq, _profiles(state))
        if len(state.guards.circuits) or CIRCUITS not in self._last:
            self._note(CIRCUITS, seq, _circuits(state))

    def _note(self, kind: str, seq: int, facts: object) -> None:
        if kind not in self._last or self._last[kind] != facts:
            self._last[kind] = facts
            self.unsaved.append(StoredPluginFacts(kind, seq, msgspec.msgpack.encode(facts)))

    def at(self, seq: int) -> PluginFacts | None:
        """What holds after a record; None if it is not known."""
        profiles, circuits = self._form(PROFILES, seq), self._form(CIRCUITS, seq)
        if profiles is None or circuits is None:
            return None
        return PluginFacts(
            msgspec.msgpack.decode(profiles, type=tuple[ProfileFacts, ...]),
            msgspec.msgpack.decode(circuits, type=tuple[CircuitFacts, ...]),
        )

    def _form(self, kind: str, seq: int) -> bytes | None:
        for one in reversed(self.unsaved):
            if one.kind == kind and one.seq <= seq:
                return one.form
        return None if self._load is None else self._load(kind, seq)
