"""Why the claims of a pod cannot be allocated on a node, for ``asched explain``.

Each request is compared with every device of the node as if it were the only request. The first
reason counts. Selectors come first, so that devices of another kind do not count as in use.
Computed on demand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from asched.dra.capacity import consumption, fits
from asched.dra.constraints import (
    DistinctAttribute,
    MatchAttribute,
    attribute_value,
    constraint_state,
)
from asched.dra.devices import NodeView, PooledDevice, PoolID, untolerated
from asched.dra.inventory import Inventory
from asched.dra.ledger import available_counters
from asched.dra.pools import DeviceCandidate, PoolView
from asched.dra.preparation import PlannedClaim, RequestMatcher, plan_claim
from asched.dra.requests import ClaimError, RequestedDevices
from asched.dra.sites import Site
from asched.model.resource_claims import (
    ALL_DEVICES,
    ResourceClaim,
)


@dataclass(frozen=True, slots=True)
class PoolDiagnosis:
    """A pool that the node sees."""

    pool: str
    devices: int
    problem: str
    """Why nothing is allocated from it; empty for a usable pool."""


@dataclass(frozen=True, slots=True)
class RequestDiagnosis:
    """A request, or one alternative of a request."""

    claim: str
    request: str
    wanted: int | None
    """The number of devices; None for all devices."""
    considered: int
    """The devices of all usable pools."""
    suitable: int
    """Those that a request for one device could have if it were alone."""
    refused: tuple[tuple[str, int], ...]
    """The reasons, and how many devices each refused; the most frequent first."""
    limited_by: tuple[tuple[str, int], ...]
    """Constraints and counters, and how many of the suitable devices each allows at a time."""
    users: tuple[str, ...]
    """Claims that use matching devices."""
    matching: str = ""
    """The class and the selectors of the request."""

    @property
    def attainable(self) -> int:
        """How many devices the request could have if it were alone."""
        return min([self.suitable, *(most for _, most in self.limited_by)])


@dataclass(frozen=True, slots=True)
class NodeDiagnosis:
    """What the requests of some claims find on a node."""

    node: str
    pools: tuple[PoolDiagnosis, ...]
    requests: tuple[RequestDiagnosis, ...]
    problems: tuple[str, ...]
    """Errors in the claims."""


DeviceKey = tuple[PoolID, str]
Users = dict[DeviceKey, list[str]]


class ClaimDiagnoser:
    """Compares claims with the devices of nodes. What nodes share is computed once."""

    def __init__(self, inventory: Inventory) -> None:
        """The inventory must not change while nodes are diagnosed."""
        self._inventory = inventory
        self._users = _users(inventory)
        self._claims: tuple[ResourceClaim, ...] = ()
        self._plans: list[PlannedClaim] = []

    def run(self, claims: tuple[ResourceClaim, ...], node: NodeView) -> NodeDiagnosis:
        """What each request of the claims finds on a node."""
        if claims != self._claims:
            self._claims = claims
            self._plans = [
                plan_claim(index, claim.spec, self._inventory) for index, claim in enumerate(claims)
            ]
        site = Site(self._inventory.pools_of(node))
        keys = tuple(claim.key for claim in claims)
        requests: list[RequestDiagnosis] = []
        problems: list[str] = []
        for plan in self._plans:
            if plan.problem is not None:
                problems.append(plan.problem.describe(keys))
            for options in plan.requests:
                if isinstance(options, ClaimError):
                    problems.append(options.describe(keys))
                    continue
                requests += (
                    _RequestExamination(self._inventory, plan, matcher, keys).run(site, self._users)
                    for matcher in options
                )
        pools = tuple(
            PoolDiagnosis(str(pool.pool_id), len(pool.devices), _pool_problem(pool))
            for pool in site.pools
        )
        return NodeDiagnosis(node.name, pools, tuple(requests), tuple(problems))


def _pool_problem(pool: PoolView) -> str:
    return "not all of its slices are published" if pool.incomplete else pool.invalid


def _users(inventory: Inventory) -> Users:
    """The claims that use each device."""
    users: Users = {}
    for key, allocation in sorted(inventory.allocations().items()):
        for result in allocation.devices.results:
            if not result.admin_access:
                pool_id = PoolID(result.driver, result.pool)
                users.setdefault((pool_id, result.device), []).append(key)
    return users


class _RequestExamination:
    """Compares one request with every device of a site."""

    def __init__(
        self,
        inventory: Inventory,
        plan: PlannedClaim,
        matcher: RequestMatcher,
        claim_keys: tuple[str, ...],
    ) -> None:
        self._inventory = inventory
        self._plan = plan
        self._matcher = matcher
        self._wanted: RequestedDevices = matcher.wanted
        self._claim_keys = claim_keys

    def run(self, site: Site, users: Users) -> RequestDiagnosis:
        reasons: Counter[str] = Counter()
        used_by: set[str] = set()
        suitable: list[DeviceCandidate] = []
        for position, candidate in enumerate(site.candidates):
            elsewhere = bool(site.elsewhere >> position & 1)
            reason = next(filter(None, self._reasons(candidate, elsewhere)), "")
            if reason:
                reasons[reason] += 1
            else:
                suitable.append(candidate)
            for device in _in_the_way(reason, candidate):
                used_by.update(users.get((device.pool_id, device.name), ()))
        wanted = self._wanted
        considered = len(site.candidates)
        return RequestDiagnosis(
            claim=self._claim_keys[wanted.claim],
            request=wanted.reference,
            wanted=None if wanted.mode == ALL_DEVICES else wanted.count,
            considered=considered,
            suitable=len(suitable),
            refused=tuple(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
            limited_by=tuple(self._limits(suitable)),
            users=tuple(sorted(used_by)),
            matching=_matching(wanted),
        )

    def _reasons(self, candidate: DeviceCandidate, elsewhere: bool) -> Iterator[str]:
        device, wanted = candidate.device, self._wanted
        yield self._selection(device)
        if elsewhere:
            yield "for other nodes"
        use = self._inventory.usage.of(device.pool_id, device.name)
        if use.exclusive and not wanted.admin_access:
            yield _IN_USE
        yield self._capacity(device)
        yield self._counters(candidate)
        taint = untolerated(device.taints, wanted.tolerations)
        if taint is not None:
            value = f"={taint.value}" if taint.value else ""
            yield f"taint {taint.key}{value}:{taint.effect} is not tolerated"
        yield from self._constraints(device)

    def _selection(self, device: PooledDevice) -> str:
        answer = self._matcher.answer(device)
        if answer.error is not None:
            return answer.error.describe(self._claim_keys)
        if answer.match:
            return ""
        return self._matcher.refused_by(device)

    def _capacity(self, device: PooledDevice) -> str:
        needed = consumption(self._wanted.capacity, device.device.capacity)
        if needed is None:
            return "the requested capacity is missing or not allowed"
        used = self._inventory.usage.of(device.pool_id, device.name).consumed
        for name, amount in needed.amounts.items():
            if not fits({name: amount}, device.device.capacity):
                return f"not enough capacity {name}"
            if not fits({name: amount}, device.device.capacity, used):
                return f"{_CAPACITY_USED} {name}"
        return ""

    def _counters(self, candidate: DeviceCandidate) -> str:
        device = candidate.device
        use = self._inventory.usage.of(device.pool_id, device.name)
        if not device.counters or (device.multiple and use.capacity_shares):
            return ""
        left = available_counters(candidate.pool, self._inventory.usage)
        for used in device.counters:
            key = (used.counter_set, used.counter)
            left[key] -= used.amount
        for (counter_set, counter), amount in left.items():
            if amount < 0:
                return f"{_COUNTER_USED} {counter_set}/{counter}"
        return ""

    def _constraints(self, device: PooledDevice) -> Iterator[str]:
        wanted = self._wanted
        for item in self._plan.constraints:
            state = constraint_state(item)
            if (
                state is not None
                and state.applies_to(wanted.name, wanted.alternative_name)
                and attribute_value(device.device, device.driver, state.attribute) is None
            ):
                yield f"attribute {state.attribute} of a constraint is missing"

    def _limits(self, suitable: Sequence[DeviceCandidate]) -> Iterator[tuple[str, int]]:
        """What allows fewer devices at a time than the request needs, although more are suitable.

        Only upper bounds: the request may get fewer.
        """
        wanted = self._wanted
        if wanted.mode == ALL_DEVICES or wanted.count < 2 or not suitable:
            return
        for item in self._plan.constraints:
            state = constraint_state(item)
            if state is not None and state.applies_to(wanted.name, wanted.alternative_name):
                most = _most_together(state, suitable)
                if most < wanted.count:
                    kind = "match" if isinstance(state, MatchAttribute) else "distinct"
                    yield f"constraint {kind}Attribute {state.attribute}", most
        pools: dict[int, list[DeviceCandidate]] = {}
        for candidate in suitable:
            pools.setdefault(candidate.pool.serial, []).append(candidate)
        within = [_within_counters(each, self._inventory) for each in pools.values()]
        most = sum(count for _, count in within)
        names = sorted({name for name, _ in within if name})
        if names and most < wanted.count:
            yield f"counter {', '.join(names)}", most


def _most_together(
    state: MatchAttribute | DistinctAttribute, suitable: Sequence[DeviceCandidate]
) -> int:
    """The largest number of devices of one request that a constraint may allow."""
    values = Counter(
        attribute_value(each.device.device, each.device.driver, state.attribute)
        for each in suitable
    )
    if isinstance(state, MatchAttribute):
        return max(values.values())
    # Of a request, the latest value alone is compared, as in kube-scheduler.
    return 1 if len(values) == 1 else len(suitable)


def _within_counters(
    candidates: Sequence[DeviceCandidate], inventory: Inventory
) -> tuple[str, int]:
    """The counter of a pool that allows the fewest of these devices at a time, and how many."""
    left = available_counters(candidates[0].pool, inventory.usage)
    name, most = "", len(candidates)
    for key, available in left.items():
        amounts = sorted(
            sum(use.amount for use in each.device.counters if use[:2] == key) for each in candidates
        )
        allowed = sum(total <= available for total in accumulate(amounts))
        if allowed < most:
            name, most = "/".join(key), allowed
    return name, most


def _matching(wanted: RequestedDevices) -> str:
    selectors = [each.cel.expression for each in wanted.selectors if each.cel is not None]
    name = f"class {wanted.device_class.name}"
    return f"{name} with {' && '.join(selectors)}" if selectors else name


_IN_USE = "in use"
_CAPACITY_USED = "in use: capacity"
_COUNTER_USED = "in use: counter"


def _in_the_way(reason: str, candidate: DeviceCandidate) -> Sequence[PooledDevice]:
    """The devices with users that are the reason."""
    if reason == _IN_USE or reason.startswith(_CAPACITY_USED):
        return (candidate.device,)
    return candidate.pool.consumers if reason.startswith(_COUNTER_USED) else ()
