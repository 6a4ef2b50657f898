"""Circuit breakers of plugins.

A circuit opens when its plugin fails too often within a window, and closes after a fixed time.
After that the next failure opens it again at once, until a pod is placed. Circuits follow from
records, so a replay opens the same ones. Only the fold changes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from asched.framework.runtime.profile import BreakerSpec, Profile
from asched.model.quantity import NS_PER_S
from asched.state.stored_form import StoredForm


class CircuitSnapshot(StoredForm):
    scheduler_name: str
    plugin: str
    failed_at_ns: tuple[int, ...]
    open_until_ns: int
    on_trial: bool
    rejected: tuple[str, ...]


@dataclass(slots=True)
class Circuit:
    """The circuit breaker of one plugin in one profile."""

    spec: BreakerSpec
    failed_at_ns: deque[int] = field(default_factory=deque)
    """The failures within the window."""
    open_until_ns: int = 0
    """0 while it is closed."""
    on_trial: bool = False
    """It was open and no pod was placed since."""
    rejected: dict[str, None] = field(default_factory=dict)
    """Keys of the pods that were rejected because it is open."""

    @property
    def is_open(self) -> bool:
        return self.open_until_ns > 0

    def fail(self, now_ns: int) -> None:
        spec, failed = self.spec, self.failed_at_ns
        failed.append(now_ns)
        while failed[0] <= now_ns - round(spec.window_s * NS_PER_S):
            failed.popleft()
        if not self.open_until_ns and (self.on_trial or len(failed) >= spec.failures):
            self.open_until_ns = now_ns + round(spec.open_s * NS_PER_S)
            failed.clear()


class Circuits:
    """The circuit breakers of all profiles, by scheduler name and plugin."""

    def __init__(self) -> None:
        self._circuits: dict[tuple[str, str], Circuit] = {}

    def __len__(self) -> int:
        return len(self._circuits)

    def __iter__(self) -> Iterator[tuple[str, str, Circuit]]:
        """Scheduler name, plugin and circuit."""
        for (scheduler_name, plugin), circuit in self._circuits.items():
            yield scheduler_name, plugin, circuit

    def configure(self, profiles: Iterable[Profile]) -> None:
        """Replace the profiles; all circuits are closed."""
        self._circuits = {
            (profile.scheduler_name, policy.name): Circuit(policy.breaker)
            for profile in profiles
            for policy in profile.spec.policies
            if policy.breaker is not None
        }

    def circuit(self, scheduler_name: str, plugin: str) -> Circuit:
        """Raises KeyError if the plugin has no circuit breaker."""
        return self._circuits[scheduler_name, plugin]

    def failed(self, scheduler_name: str, plugin: str, now_ns: int) -> None:
        """Count a failure of the plugin, if it has a circuit breaker."""
        circuit = self._circuits.get((scheduler_name, plugin))
        if circuit is not None:
            circuit.fail(now_ns)

    def succeeded(self, scheduler_name: str) -> None:
        """A pod of the profile was placed."""
        for (name, _), circuit in self._circuits.items():
            if name == scheduler_name and not circuit.open_until_ns:
                circuit.on_trial = False

    def reject(self, scheduler_name: str, plugin: str, key: str) -> None:
        """The pod was rejected by an open circuit; :meth:`tick` returns it when that closes."""
        circuit = self._circuits.get((scheduler_name, plugin))
        if circuit is not None:
            circuit.rejected[key] = None

    def next_timer_ns(self) -> int | None:
        """When the next circuit closes."""
        if not self._circuits:  # asked in every turn
            return None
        times = (c.open_until_ns for c in self._circuits.values() if c.open_until_ns)
        return min(times, default=None)

    def tick(self, now_ns: int) -> list[str]:
        """Close the circuits that are due. Returns the keys of the pods that they rejected."""
        keys: list[str] = []
        for circuit in self._circuits.values():
            if circuit.open_until_ns and circuit.open_until_ns <= now_ns:
                circuit.open_until_ns, circuit.on_trial = 0, True
                keys += circuit.rejected
                circuit.rejected.clear()
        return keys

    def snapshot(self) -> tuple[CircuitSnapshot, ...]:
        return tuple(
            CircuitSnapshot(
                scheduler_name=scheduler_name,
                plugin=plugin,
                failed_at_ns=tuple(c.failed_at_ns),
                open_until_ns=c.open_until_ns,
                on_trial=c.on_trial,
                rejected=tuple(c.rejected),
            )
            for scheduler_name, plugin, c in self
        )

    def restore(self, snapshots: Sequence[CircuitSnapshot]) -> None:
        """Raises KeyError for a plugin without a circuit breaker."""
        for snapshot in snapshots:
            circuit = self.circuit(snapshot.scheduler_name, snapshot.plugin)
            circuit.failed_at_ns.extend(snapshot.failed_at_ns)
            circuit.open_until_ns, circuit.on_trial = snapshot.open_until_ns, snapshot.on_trial
            circuit.rejected.update(dict.fromkeys(snapshot.rejected))

    # -- for decisions ------------------------------------------------------------------------

    def blocking(self, profile: Profile) -> str:
        """The first required plugin with an open circuit; empty if there is none."""
        for policy in profile.spec.policies:
            if not policy.optional and self._is_open(profile, policy.name):
                return policy.name
        return ""

    def in_force(self, profile: Profile) -> Profile:
        """The profile without optional plugins that have an open circuit."""
        if not self._circuits:
            return profile
        return profile.without(
            frozenset(
                policy.name
                for policy in profile.spec.policies
                if policy.optional and self._is_open(profile, policy.name)
            )
        )

    def _is_open(self, profile: Profile, plugin: str) -> bool:
        circuit = self._circuits.get((profile.scheduler_name, plugin))
        return circuit is not None and circuit.is_open


def circuit_as_plugin(plugin: str) -> str:
    """The name under which a pod waits for an open circuit: no cluster event closes it."""
    return f"{plugin} (circuit open)"
