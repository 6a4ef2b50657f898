"""Circuit breakers of plugins: who failed too often is left alone for a while.

A circuit opens when its plugin failed so many times within a window, and closes again when its time is
over; then the first failure opens it at once, until a pod was placed. All of it follows from records, so
a replay finds the same circuits open. Only the fold changes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from asched.framework.runtime.profile import BreakerSpec, Profile
from asched.model.quantity import NS_PER_S


class Circuit:
    """The breaker of one plugin in one profile."""

    __slots__ = ("failed_at_ns", "held", "on_trial", "spec", "until_ns")

    def __init__(self, spec: BreakerSpec) -> None:
        self.spec = spec
        self.failed_at_ns: deque[int] = deque()
        """The failures within the window."""
        self.until_ns = 0
        """Until when it is open; 0 while it is closed."""
        self.on_trial = False
        """It was open, and nothing has gone well since."""
        self.held: dict[str, None] = {}
        """Keys of the pods that were turned away because it is open."""

    @property
    def is_open(self) -> bool:
        return self.until_ns > 0

    def fail(self, now_ns: int) -> None:
        spec, failed = self.spec, self.failed_at_ns
        failed.append(now_ns)
        while failed[0] <= now_ns - round(spec.window_s * NS_PER_S):
            failed.popleft()
        if not self.until_ns and (self.on_trial or len(failed) >= spec.failures):
            self.until_ns = now_ns + round(spec.open_s * NS_PER_S)
            failed.clear()


class Circuits:
    """The breakers of all profiles, by scheduler name and plugin."""

    def __init__(self) -> None:
        self._circuits: dict[tuple[str, str], Circuit] = {}

    def __len__(self) -> int:
        return len(self._circuits)

    def __iter__(self) -> Iterator[tuple[str, str, Circuit]]:
        for (scheduler_name, plugin), circuit in self._circuits.items():
            yield scheduler_name, plugin, circuit

    def configure(self, profiles: Iterable[Profile]) -> None:
        """New profiles: all circuits are closed."""
        self._circuits = {
            (profile.scheduler_name, policy.name): Circuit(policy.breaker)
            for profile in profiles
            for policy in profile.spec.policies
            if policy.breaker is not None
        }

    def circuit(self, scheduler_name: str, plugin: str) -> Circuit:
        """Raises KeyError where the plugin has none."""
        return self._circuits[scheduler_name, plugin]

    def failed(self, scheduler_name: str, plugin: str, now_ns: int) -> None:
        """The plugin failed; nothing if it has no circuit."""
        circuit = self._circuits.get((scheduler_name, plugin))
        if circuit is not None:
            circuit.fail(now_ns)

    def worked(self, scheduler_name: str) -> None:
        """A pod of the profile was placed."""
        for (name, _), circuit in self._circuits.items():
            if name == scheduler_name and not circuit.until_ns:
                circuit.on_trial = False

    def hold(self, scheduler_name: str, plugin: str, key: str) -> None:
        """The pod of that key was turned away by an open circuit; it is told when that closes."""
        circuit = self._circuits.get((scheduler_name, plugin))
        if circuit is not None:
            circuit.held[key] = None

    def next_timer_ns(self) -> int | None:
        """When the next circuit closes."""
        times = (circuit.until_ns for circuit in self._circuits.values() if circuit.until_ns)
        return min(times, default=None)

    def tick(self, now_ns: int) -> list[str]:
        """Close what is due. The keys of the pods that it turned away."""
        freed: list[str] = []
        for circuit in self._circuits.values():
            if circuit.until_ns and circuit.until_ns <= now_ns:
                circuit.until_ns, circuit.on_trial = 0, True
                freed += circuit.held
                circuit.held.clear()
        return freed

    # -- for decisions ------------------------------------------------------------------------

    def blocking(self, profile: Profile) -> str:
        """The first plugin whose circuit is open and without which the profile cannot decide; empty
        where there is none."""
        for policy in profile.spec.policies:
            if not policy.optional and self._is_open(profile, policy.name):
                return policy.name
        return ""

    def in_force(self, profile: Profile) -> Profile:
        """The profile but for the optional plugins whose circuits are open."""
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


def waits_for_circuit(plugin: str) -> str:
    """What stands for an open circuit among the plugins that a pod waits for: no event closes it."""
    return f"{plugin} (circuit open)"
