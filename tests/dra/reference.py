"""A plain allocator: rules 7 to 24, written for reading. No caches, no pruning, exact fractions.

It works on decoded API objects alone. Tests compare :mod:`asched.dra` with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from asched.dra.devices import NodeView
from asched.model.quantity import QuantityText
from asched.model.resource_claims import (
    Device,
    DeviceClass,
    DeviceConstraint,
    DeviceRequest,
    ResourceClaim,
    ResourceSlice,
)
from tests.dra.selector_double import TextSelector

_SUFFIXES = {
    "": Fraction(1),
    "m": Fraction(1, 1000),
    "k": Fraction(1000),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
}

MAX_DEVICES = 32

DeviceId = tuple[str, str, str]


def exact(quantity: QuantityText) -> Fraction:
    match = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(quantity))
    assert match is not None
    return Fraction(match[1]) * _SUFFIXES[match[2]]


class ReferenceError(Exception):
    """Ends the attempt."""


class TooManyStepsError(Exception):
    """The example is too large for an exhaustive search."""


class _TooManyDevicesError(Exception):
    """No alternative keeps within the limit of devices."""


@dataclass
class Cluster:
    slices: Sequence[ResourceSlice]
    classes: dict[str, DeviceClass]
    claims: Sequence[ResourceClaim]


@dataclass
class PoolModel:
    driver: str
    name: str
    state: str = ""
    devices: list[tuple[ResourceSlice, Device]] = field(default_factory=list)
    everything: list[ResourceSlice] = field(default_factory=list)
    counters: dict[tuple[str, str], Fraction] = field(default_factory=dict)


@dataclass
class Wanted:
    claim: int
    request: DeviceRequest
    alternative: int
    body: Any
    device_class: DeviceClass
    devices: list[tuple[PoolModel, ResourceSlice, Device]] | None = None

    @property
    def count(self) -> int:
        return self.body.count if self.devices is None else len(self.devices)

    @property
    def reference(self) -> str:
        name = self.request.name
        if not self.request.first_available:
            return name
        return f"{name}/{self.request.first_available[self.alternative].name}"

    @property
    def own_name(self) -> str:
        return self.reference.rpartition("/")[2]

    @property
    def admin(self) -> bool:
        return bool(getattr(self.body, "admin_access", False))


Taken = tuple[str, DeviceId, dict[str, Fraction] | None]


class Reference:
    """One allocation of some claims on one node."""

    def __init__(self, cluster: Cluster, node: NodeView, claims: Sequence[ResourceClaim]) -> None:
        self.cluster, self.node, self.claims = cluster, node, claims
        self.whole: set[DeviceId] = set()
        self.shared: set[DeviceId] = set()
        self.used: dict[DeviceId, dict[str, Fraction]] = {}
        for claim in cluster.claims:
            self._count(claim)
        self.pools = sorted(self._pools(), key=self._order)
        self.wanted: dict[tuple[int, int], list[Wanted]] = {}
        self.taking: dict[DeviceId, set[int]] = {}
        self.using: dict[DeviceId, dict[str, Fraction]] = {}
        self.booked: dict[str, dict[tuple[str, str], Fraction]] = {}
        self.available: dict[str, dict[tuple[str, str], Fraction]] = {}
        self.constraints: list[list[dict[str, Any]]] = []
        self.results: list[list[Taken]] = [[] for _ in claims]
        self.steps = 0

    # -- what is in use and what is offered -------------------------------------------------------

    def _count(self, claim: ResourceClaim) -> None:
        if claim.status.allocation is None:
            return
        for result in claim.status.allocation.devices.results:
            key = (result.driver, result.pool, result.device)
            if result.admin_access:
                continue
            if result.share_id is None:
                self.whole.add(key)
                continue
            self.shared.add(key)
            if result.consumed_capacity:
                used = self.used.setdefault(key, {})
                for name, quantity in result.consumed_capacity.items():
                    used[name] = used.get(name, Fraction()) + exact(quantity)

    def _selects(self, item: ResourceSlice | Device) -> bool:
        spec: Any = item.spec if isinstance(item, ResourceSlice) else item
        if spec.node_name:
            return bool(spec.node_name == self.node[0])
        if spec.all_nodes:
            return True
        selector = spec.node_selector
        return selector is not None and selector.matches(self.node[1], self.node[0])

    def _relevant(self, item: ResourceSlice) -> bool:
        spec = item.spec
        if spec.shared_counters:
            return True
        if spec.node_name or spec.all_nodes or spec.node_selector is not None:
            return self._selects(item)
        return spec.per_device_node_selection and any(self._selects(d) for d in spec.devices)

    def _pools(self) -> Iterator[PoolModel]:
        for driver, name in {(s.spec.driver, s.spec.pool.name) for s in self.cluster.slices}:
            published = [
                s
                for s in sorted(self.cluster.slices, key=lambda s: s.name)
                if (s.spec.driver, s.spec.pool.name) == (driver, name)
            ]
            relevant = [s for s in published if self._relevant(s)]
            if relevant:
                pool = self._pool(PoolModel(driver, name), relevant, published)
                if pool is not None:
                    yield pool

    def _pool(
        self, pool: PoolModel, relevant: list[ResourceSlice], published: list[ResourceSlice]
    ) -> PoolModel | None:
        newest = max(s.spec.pool.generation for s in relevant)
        current = [s for s in relevant if s.spec.pool.generation == newest]
        count = current[0].spec.pool.resource_slice_count
        pool.everything = current
        if len(current) != count:
            if any(s.spec.pool.generation > newest for s in published):
                return None
            pool.everything = [s for s in published if s.spec.pool.generation == newest]
            if len(pool.everything) != count:
                pool.state = "being updated"
                return pool
        offering = [(s, d) for s in current if not s.spec.shared_counters for d in s.spec.devices]
        names = [device.name for _, device in offering]
        sets = [counters for s in current for counters in s.spec.shared_counters]
        pool.counters = {
            (c.name, name): exact(counter.value)
            for c in sets
            for name, counter in c.counters.items()
        }
        known = {c.name for c in sets}
        consumed = [u for s in pool.everything for d in s.spec.devices for u in d.consumes_counters]
        if (
            len(set(names)) < len(names)
            or len(known) < len(sets)
            or any(u.counter_set not in known for u in consumed)
            or any((u.counter_set, n) not in pool.counters for u in consumed for n in u.counters)
        ):
            pool.state = "invalid"
            return pool
        pool.devices = offering
        return pool

    @staticmethod
    def _order(pool: PoolModel) -> tuple[bool, str, str]:
        late = any(device.binding_conditions for _, device in pool.devices)
        return (late, pool.driver, pool.name)

    # -- the allocation ---------------------------------------------------------------------------

    def allocate(self) -> list[list[Taken]] | str:
        for index, claim in enumerate(self.claims):
            self._read(index, claim)
        if self._request(0, 0):
            return self.results
        if any(pool.state == "invalid" for pool in self.pools):
            return "invalid resource pools were encountered"
        return "cannot allocate all claims"

    def _read(self, index: int, claim: ResourceClaim) -> None:
        fewest = 0
        for number, request in enumerate(claim.spec.devices.requests):
            bodies = request.first_available or (request.exactly,)
            options = []
            for alternative, body in enumerate(bodies):
                assert body is not None
                device_class = self.cluster.classes[body.device_class_name]
                wanted = Wanted(index, request, alternative, body, device_class)
                if body.allocation_mode == "All":
                    wanted.devices = list(self._all_devices(claim, wanted))
                options.append(wanted)
            self.wanted[index, number] = options
            fewest += min(option.count for option in options)
        if fewest > MAX_DEVICES:
            raise ReferenceError(
                f"claim {claim.key}: number of requested devices {fewest} exceeds the claim limit"
                f" of {MAX_DEVICES}"
            )
        self.constraints.append(
            [{"of": c, "count": 0, "values": {}} for c in claim.spec.devices.constraints]
        )

    def _all_devices(
        self, claim: ResourceClaim, wanted: Wanted
    ) -> Iterator[tuple[PoolModel, ResourceSlice, Device]]:
        for pool in self.pools:
            if pool.state:
                raise ReferenceError(
                    f"claim {claim.key}, request {wanted.own_name}: asks for all devices, but"
                    f" resource pool {pool.driver}/{pool.name} is currently {pool.state}"
                )
            for item, device in pool.devices:
                if self._selectable(wanted, item, device) and self._enough(wanted, item, device):
                    yield pool, item, device

    def _request(self, claim: int, number: int) -> bool:
        if claim == len(self.claims):
            return True
        if number == len(self.claims[claim].spec.devices.requests):
            try:
                return self._request(claim + 1, 0)
            except _TooManyDevicesError:
                return False
        options = self.wanted[claim, number]
        if not self.claims[claim].spec.devices.requests[number].first_available:
            return self._device(options[0], number, 0, 0)
        too_many = 0
        for option in options:
            try:
                if self._device(option, number, 0, 0):
                    return True
            except _TooManyDevicesError:
                too_many += 1
        if too_many == len(options):
            raise _TooManyDevicesError
        return False

    def _device(self, wanted: Wanted, number: int, index: int, start: int) -> bool:
        self.steps += 1
        if self.steps > 30_000:
            raise TooManyStepsError
        if wanted.devices is not None and not wanted.devices:
            return False
        if index == wanted.count:
            return self._request(wanted.claim, number + 1)
        if len(self.results[wanted.claim]) + wanted.count - index > MAX_DEVICES:
            raise _TooManyDevicesError
        if wanted.devices is not None:
            pool, item, device = wanted.devices[index]
            undo = self._take(wanted, pool, item, device)
            return undo is not None and self._or_undo(undo, (wanted, number, index + 1, 0))
        flat = [(p, s, d) for p in self.pools for s, d in p.devices]
        for position in range(start, len(flat)):
            pool, item, device = flat[position]
            key = self._key(item, device)
            if wanted.admin and wanted.claim in self.taking.get(key, ()):
                continue
            if not wanted.admin and self._in_use(key):
                continue
            if not self._selectable(wanted, item, device):
                continue
            if not self._enough(wanted, item, device):
                continue
            undo = self._take(wanted, pool, item, device)
            if undo is not None and self._or_undo(undo, (wanted, number, index + 1, position + 1)):
                return True
        return False

    def _or_undo(self, undo: Any, rest: tuple[Wanted, int, int, int]) -> bool:
        try:
            done = self._device(*rest)
        except _TooManyDevicesError:
            undo()
            raise
        if not done:
            undo()
        return done

    # -- one device -------------------------------------------------------------------------------

    @staticmethod
    def _key(item: ResourceSlice, device: Device) -> DeviceId:
        return (item.spec.driver, item.spec.pool.name, device.name)

    def _in_use(self, key: DeviceId) -> bool:
        return key in self.whole or bool(self.taking.get(key))

    def _selectable(self, wanted: Wanted, item: ResourceSlice, device: Device) -> bool:
        origins = (
            (f"class {wanted.device_class.name}", wanted.device_class.spec.selectors),
            (f"claim {self.claims[wanted.claim].key}", wanted.body.selectors),
        )
        for origin, selectors in origins:
            for index, selector in enumerate(selectors):
                answer = TextSelector(selector.cel.expression).evaluate(item.spec.driver, device)
                if answer.error:
                    raise ReferenceError(f"{origin}: selector #{index}: {answer.error}")
                if not answer.match:
                    return False
        return not item.spec.per_device_node_selection or self._selects(device)

    def _consumed(self, wanted: Wanted, device: Device) -> dict[str, Fraction] | None:
        asked = wanted.body.capacity.requests if wanted.body.capacity is not None else {}
        if not set(asked) <= set(device.capacity):
            return None
        return {name: self._amount(asked.get(name), c) for name, c in device.capacity.items()}

    @staticmethod
    def _amount(asked: QuantityText | None, capacity: Any) -> Fraction:
        policy = capacity.request_policy
        if asked is None:
            if policy is not None and policy.default is not None:
                return exact(policy.default)
            return exact(capacity.value)
        amount = exact(asked)
        if policy is None:
            return amount
        if policy.valid_range is not None:
            low = exact(policy.valid_range.min)
            if amount <= low:
                return low
            if policy.valid_range.step is not None:
                step = exact(policy.valid_range.step)
                amount = low + -(-(amount - low) // step) * step
            return amount
        return min((v for v in map(exact, policy.valid_values) if v >= amount), default=amount)

    def _enough(self, wanted: Wanted, item: ResourceSlice, device: Device) -> bool:
        consumed = self._consumed(wanted, device)
        if consumed is None:
            return False
        key = self._key(item, device)
        for name, amount in consumed.items():
            capacity = device.capacity[name]
            policy = capacity.request_policy
            if policy is not None and policy.valid_range is not None:
                most = policy.valid_range.max
                if most is not None and amount > exact(most):
                    return False
            valid = policy.valid_values if policy is not None else ()
            if valid and amount not in map(exact, valid):
                return False
            before = self.used.get(key, {}).get(name, 0) + self.using.get(key, {}).get(name, 0)
            if before + amount > exact(capacity.value):
                return False
        return True

    def _take(self, wanted: Wanted, pool: PoolModel, item: ResourceSlice, device: Device) -> Any:
        key, shareable = self._key(item, device), device.allow_multiple_allocations
        if wanted.admin:
            if not shareable and wanted.claim in self.taking.get(key, ()):
                return None
        elif self._in_use(key):
            return None
        skips = shareable and (bool(self.used.get(key)) or key in self.using)
        if device.consumes_counters and not skips and not self._book(pool, device):
            return None
        if not all(self._tolerated(wanted, taint) for taint in device.taints):
            return None
        states = self.constraints[wanted.claim]
        for index, state in enumerate(states):
            if not self._constrain(state, wanted, item, device):
                if wanted.devices is not None:
                    raise ReferenceError(
                        f"claim {self.claims[wanted.claim].key}, request {wanted.own_name}: cannot"
                        f" add device {'/'.join(key)} because a claim constraint would not be"
                        " satisfied"
                    )
                for earlier in states[:index]:
                    self._relax(earlier, wanted)
                return None
        if not shareable:
            self.taking.setdefault(key, set()).add(wanted.claim)
        if not self._enough(wanted, item, device):
            return None
        consumed = self._consumed(wanted, device) if shareable else None
        if consumed is not None:
            using = self.using.setdefault(key, {})
            for name, amount in consumed.items():
                using[name] = using.get(name, Fraction()) + amount
        self.results[wanted.claim].append((wanted.reference, key, consumed))

        def undo() -> None:
            for state in states:
                self._relax(state, wanted)
            if consumed is None:
                self.taking[key].discard(wanted.claim)
                self._unbook(pool, device)
            elif consumed and key in self.using:
                for name, amount in consumed.items():
                    self.using[key][name] -= amount
                if not any(self.using[key].values()):
                    del self.using[key]
            self.results[wanted.claim].pop()

        return undo

    @staticmethod
    def _tolerated(wanted: Wanted, taint: Any) -> bool:
        return taint.effect not in ("NoSchedule", "NoExecute") or any(
            t.effect in ("", taint.effect)
            and t.key in ("", taint.key)
            and (t.operator == "Exists" or t.value == taint.value)
            for t in wanted.body.tolerations
        )

    # -- constraints and counters -----------------------------------------------------------------

    @staticmethod
    def _applies(of: DeviceConstraint, wanted: Wanted) -> bool:
        return (
            not of.requests or wanted.request.name in of.requests or wanted.reference in of.requests
        )

    def _constrain(
        self, state: dict[str, Any], wanted: Wanted, item: ResourceSlice, device: Device
    ) -> bool:
        of: DeviceConstraint = state["of"]
        if not self._applies(of, wanted):
            return True
        name = of.match_attribute or of.distinct_attribute or ""
        attribute = device.attributes.get(name)
        domain, _, identifier = name.partition("/")
        if attribute is None and domain == item.spec.driver:
            attribute = device.attributes.get(identifier)
        if attribute is None:
            return False
        value = (attribute.string, attribute.integer, attribute.boolean, attribute.version)
        if of.match_attribute:
            if state["count"] and state["values"]["first"] != value:
                return False
            if not state["count"]:
                state["values"]["first"] = value
        else:
            if state["count"] and value in state["values"].values():
                return False
            state["values"][wanted.request.name] = value
        state["count"] += 1
        return True

    def _relax(self, state: dict[str, Any], wanted: Wanted) -> None:
        if self._applies(state["of"], wanted):
            state["count"] -= 1
            if state["of"].distinct_attribute:
                state["values"].pop(wanted.request.name, None)

    def _book(self, pool: PoolModel, device: Device) -> bool:
        if pool.name not in self.available:
            available = dict(pool.counters)
            for item in pool.everything:
                for other in item.spec.devices:
                    key = self._key(item, other)
                    if key in self.whole or key in self.shared:
                        for use in other.consumes_counters:
                            for name, counter in use.counters.items():
                                available[use.counter_set, name] -= exact(counter.value)
            self.available[pool.name] = available
        self._add(pool, device, 1)
        booked = self.booked[pool.name]
        if any(n < booked.get(key, 0) for key, n in self.available[pool.name].items()):
            self._add(pool, device, -1)
            return False
        return True

    def _unbook(self, pool: PoolModel, device: Device) -> None:
        if device.consumes_counters:
            self._add(pool, device, -1)

    def _add(self, pool: PoolModel, device: Device, sign: int) -> None:
        booked = self.booked.setdefault(pool.name, {})
        for use in device.consumes_counters:
            for name, counter in use.counters.items():
                key = (use.counter_set, name)
                booked[key] = booked.get(key, Fraction()) + sign * exact(counter.value)
