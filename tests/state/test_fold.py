"""The fold, driven by a small model of a cluster with events in any order."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from asched.framework.cluster import PodRef
from asched.framework.runtime.profile import ProfileSpec
from asched.framework.status import Code
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.model.resources import Resource
from asched.state import records as r
from asched.state.cluster import ClusterState, PlacementState
from asched.state.fold import Fold
from asched.state.observe import (
    UnlistedObjects,
    observe_deletion,
    observe_list,
    observe_object,
)
from asched.testing.invariants import check
from tests.state.description import describe
from tests.state.objects import a_node, a_pod, bound, deleted, in_phase, labelled
from tests.state.profiles import DEFAULT, Ledger, loader, profile_of

NODES = ("n0", "n1", "n2")
PODS = tuple(f"p{i}" for i in range(6))
SCHEDULERS = ("default-scheduler", "batch", "somebody-else")
WHEN = datetime(2026, 1, 1, tzinfo=UTC)
PLUGINS = ("NodeWatcher", "RoomWatcher")

profiles = st.sampled_from(
    (
        (profile_of(*DEFAULT),),
        (profile_of(*DEFAULT), profile_of(*DEFAULT, name="batch")),
        (profile_of(*DEFAULT, name="batch"),),
    )
)


class FoldMachine(RuleBasedStateMachine):
    """``truth``: objects of the API server; ``undelivered``: watch events in transit, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.truth: dict[str, Object] = {}
        self.undelivered: list[tuple[str, Object]] = []
        self.delivered: list[tuple[str, Object]] = []
        self.records: list[r.AnyRecord] = []
        self.uids = 0
        self.fold = Fold(ClusterState(), loader(*DEFAULT))
        self.state = self.fold.state

    def apply(self, record: r.AnyRecord | None) -> None:
        if record is not None:
            self.records.append(record)
            self.fold.apply(record)
            check(self.state)

    @initialize(loaded=profiles)
    def start(self, loaded: tuple[ProfileSpec, ...]) -> None:
        self.apply(r.EngineStarted("test", 7))
        self.reconfigure(loaded)
        for name in NODES[:2]:
            self.set_node(name, "4", "a")

    # -- cluster ------------------------------------------------------------------------------

    def put(self, item: Object) -> None:
        self.truth[f"{type(item).__name__} {item.key}"] = item
        self.undelivered.append(("set", item))

    def take(self, item: Object) -> None:
        del self.truth[f"{type(item).__name__} {item.key}"]
        self.undelivered.append(("gone", item))

    def pods(self) -> list[Pod]:
        return [item for item in self.truth.values() if isinstance(item, Pod)]

    def draw_pod(self, data: st.DataObject) -> Pod:
        return data.draw(st.sampled_from(self.pods()))

    @rule(
        name=st.sampled_from(PODS),
        scheduler=st.sampled_from(SCHEDULERS),
        priority=st.integers(0, 2),
        gates=st.sampled_from(((), (), ("wait",))),
        nominated=st.sampled_from(("", "", "n0")),
        on=st.sampled_from(("", "", "", "n1", "unknown")),
    )
    def create_pod(
        self, name: str, scheduler: str, priority: int, gates: tuple[str, ...], nominated: str,
        on: str,
    ) -> None:  # fmt: skip
        old = self.truth.get(f"Pod default/{name}")
        if old is not None:
            self.take(old)
        self.uids += 1
        self.put(
            a_pod(
                name, uid=f"{name}-{self.uids}", scheduler=scheduler, priority=priority,
                gates=() if on else gates, nominated=nominated, on=on,
            )
        )  # fmt: skip

    @precondition(lambda self: self.pods())
    @rule(data=st.data(), change=st.sampled_from(("label", "ungate", "delete", "finish", "gone")))
    def change_pod(self, data: st.DataObject, change: str) -> None:
        pod = self.draw_pod(data)
        match change:
            case "label":
                self.put(labelled(pod, app=data.draw(st.sampled_from("xy"))))
            case "ungate":
                spec = a_pod("p", scheduler=pod.spec.scheduler_name).spec
                self.put(Pod(metadata=pod.metadata, spec=spec, status=pod.status))
            case "delete":
                self.put(deleted(pod, WHEN))
            case "finish":
                self.put(in_phase(pod, data.draw(st.sampled_from(("Succeeded", "Failed")))))
            case "gone":
                self.take(pod)

    @precondition(lambda self: self.pods())
    @rule(data=st.data(), node=st.sampled_from((*NODES, "unknown")))
    def bind_by_somebody_else(self, data: st.DataObject, node: str) -> None:
        pod = self.draw_pod(data)
        if not pod.node_name:
            self.put(bound(pod, node))

    @rule(name=st.sampled_from(NODES), cpu=st.sampled_from("24"), zone=st.sampled_from("ab"))
    def set_node(self, name: str, cpu: str, zone: str) -> None:
        self.put(a_node(name, {"cpu": cpu, "pods": "110"}, labels={"zone": zone}))

    @rule(name=st.sampled_from(NODES))
    def remove_node(self, name: str) -> None:
        node = self.truth.get(f"Node {name}")
        if node is not None:
            self.take(node)

    # -- watch --------------------------------------------------------------------------------

    def hear(self, what: str, item: Object) -> None:
        assert isinstance(item, Pod | Node)
        if what == "set":
            self.apply(observe_object(self.state, item))
        else:
            self.apply(observe_deletion(self.state, item))

    @precondition(lambda self: self.undelivered)
    @rule(number=st.integers(1, 8))
    def deliver(self, number: int) -> None:
        batch, self.undelivered = self.undelivered[:number], self.undelivered[number:]
        for what, item in batch:
            self.hear(what, item)
        self.delivered += batch

    @precondition(lambda self: self.delivered)
    @rule(number=st.integers(1, 4))
    def hear_again(self, number: int) -> None:
        """A watch that resumed from an older version repeats its last events."""
        for what, item in self.delivered[-number:]:
            self.hear(what, item)

    @rule(part=st.sampled_from((1, 2, 100)))
    def list_again(self, part: int) -> None:
        """The watch history was lost: a complete list, in parts of so many objects."""
        self.delivered += self.undelivered
        self.undelivered.clear()
        for resource in (Resource.NODES, Resource.PODS):
            kind = resource.value.type
            listed = [item for item in self.truth.values() if isinstance(item, kind)]
            unlisted = UnlistedObjects(self.state, resource)
            for begin in range(0, len(listed) or 1, part):
                objects, ends = listed[begin : begin + part], begin + part >= len(listed)
                for record in observe_list(
                    self.state, resource, objects, unlisted=unlisted, ends=ends
                ):
                    self.apply(record)
            # A second list yields no records.
            assert not [*observe_list(self.state, resource, listed)]

    # -- asched -------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from((0, 1, 3, 20, 400)))
    def turn(self, seconds: int) -> None:
        self.apply(r.TurnStarted(self.state.now_ns + seconds * NS_PER_S))

    @rule(loaded=profiles)
    def reconfigure(self, loaded: tuple[ProfileSpec, ...]) -> None:
        self.apply(r.ProfilesLoaded(loaded))

    @precondition(lambda self: self.state.queue.active and self.state.nodes.cluster_size)
    @rule(data=st.data(), held=st.booleans())
    def assign(self, data: st.DataObject, held: bool) -> None:
        queued = self.state.queue.head()
        assert queued is not None
        node = data.draw(st.sampled_from([name for name in self.state.nodes.names if name]))
        hold = r.PermitWait("Doorman", self.state.now_ns + NS_PER_S)
        info = queued.info
        self.apply(
            r.Assigned(
                info.key, info.uid, node, queued.attempts + 1, 1,
                permit_waits=(hold,) if held else (),
                reservations=(r.Reservation("Ledger", {"node": node}),),
            )
        )  # fmt: skip

    @precondition(lambda self: self.state.queue.active)
    @rule(
        data=st.data(),
        refused=st.lists(st.sampled_from(PLUGINS), unique=True).map(tuple),
        pending=st.lists(st.sampled_from(PLUGINS), unique=True, max_size=1).map(tuple),
        nominated=st.sampled_from((None, "", "n0", "n1")),
    )
    def reject(
        self, data: st.DataObject, refused: tuple[str, ...], pending: tuple[str, ...],
        nominated: str | None,
    ) -> None:  # fmt: skip
        queued = self.state.queue.head()
        assert queued is not None
        placed = [e.info for e in self.state.pods.values() if e.node]
        chosen = data.draw(st.lists(st.sampled_from(placed), max_size=2)) if placed else []
        victims = tuple(PodRef(info.key, info.uid) for info in chosen)
        info, attempt = queued.info, queued.attempts + 1
        self.apply(
            r.Rejected(
                info.key, info.uid, attempt, "no", refused, pending, nominated, victims
            )
        )  # fmt: skip

    @precondition(lambda self: self.state.queue.active)
    @rule()
    def fail(self) -> None:
        queued = self.state.queue.head()
        assert queued is not None
        info = queued.info
        self.apply(r.AttemptFailed(info.key, info.uid, queued.attempts + 1, "Ledger", "oops"))

    @precondition(lambda self: self.state.waiting)
    @rule(data=st.data(), allow=st.booleans())
    def permit(self, data: st.DataObject, allow: bool) -> None:
        key = data.draw(st.sampled_from(list(self.state.waiting)))
        uid = self.state.waiting[key].info.uid
        if allow:
            self.apply(r.PermitAllowed(key, uid, "Doorman"))
        else:
            self.apply(r.PermitRejected(key, uid, "Doorman", "go away"))

    def assumed(self) -> list[r.Assigned]:
        return [e.assignment for e in self.state.pods.values() if e.assignment is not None]

    @precondition(lambda self: self.assumed())
    @rule(
        data=st.data(),
        works=st.booleans(),
        code=st.sampled_from((Code.ERROR, Code.UNSCHEDULABLE, Code.PENDING)),
        plugin=st.sampled_from(("", *PLUGINS)),
    )
    def bind(self, data: st.DataObject, works: bool, code: Code, plugin: str) -> None:
        """The response to our binding, before or after the watch event."""
        assigned = data.draw(st.sampled_from(self.assumed()))
        pod = self.truth.get(f"Pod {assigned.key}")
        here = isinstance(pod, Pod) and pod.uid == assigned.uid and not pod.node_name
        if isinstance(pod, Pod) and here and works:
            self.put(bound(pod, assigned.node))
            self.apply(r.Bound(assigned.key, assigned.uid, assigned.node))
        else:
            failed = r.BindFailed(assigned.key, assigned.uid, assigned.node, code, plugin, "no")
            self.apply(failed)

    @precondition(lambda self: self.state.evictions)
    @rule(data=st.data(), works=st.booleans())
    def evict(self, data: st.DataObject, works: bool) -> None:
        uid = data.draw(st.sampled_from(list(self.state.evictions)))
        victim = self.state.evictions[uid].victim
        if works:
            self.apply(r.EvictionSucceeded(victim.key, uid))
        else:
            self.apply(r.EvictionFailed(victim.key, uid, "no"))

    # -- invariants ---------------------------------------------------------------------------

    @invariant()
    def books_hold_what_is_assumed(self) -> None:
        booked: set[str] = set()
        for profile in self.state.profiles.values():
            ledger = profile.plugins["Ledger"]
            assert isinstance(ledger, Ledger)
            booked |= ledger.books.keys()
        for entry in self.state.pods.values():
            ours = entry.info.pod.spec.scheduler_name in self.state.profiles
            if entry.placement_state is PlacementState.ASSUMED and ours:
                assert entry.info.uid in booked
            if entry.placement_state is PlacementState.PENDING:
                assert entry.info.uid not in booked

    def teardown(self) -> None:
        self.replay_gives_the_same()
        for item in list(self.truth.values()):
            self.take(item)
        self.deliver(len(self.undelivered))
        self.nothing_is_left()

    def replay_gives_the_same(self) -> None:
        again = Fold(ClusterState(), loader(*DEFAULT))
        again.apply_all(self.records)
        assert describe(again.state) == describe(self.state)

    def nothing_is_left(self) -> None:
        state = self.state
        left = describe(state)
        assert not left["pods"]
        assert not left["nodes"]
        assert not left["objects"]
        assert not left["waiting"]
        assert not left["evictions"]
        assert not left["nominated"]
        assert state.nodes.pods_counted == 0
        assert not [place for place, pods in left["queue"].items() if pods]


FoldMachine.TestCase.settings = settings(stateful_step_count=40, deadline=None)
TestFold = FoldMachine.TestCase
