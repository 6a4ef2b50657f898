"""Changes of nodes that admit a group: more nodes, taints, cordons and labels of a domain.

Each kind of change is made on as few nodes as possible. A number that suffices is found by
bisection: what fits with some nodes is taken to fit with more of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from asched.audit.pod_group.forms import GroupChange, GroupChangeKind
from asched.audit.pod_group.lacks import DomainLack, LackFinder, demand
from asched.audit.pod_group.trial import GroupTrial, placed_in
from asched.audit.unblock import selector_labels
from asched.framework.pod_info import PodInfo
from asched.group_cycle.placement_choice import TriedPlacement
from asched.model.node import (
    HOSTNAME_LABEL,
    NO_EXECUTE,
    NO_SCHEDULE,
    UNSCHEDULABLE_TAINT,
    Node,
    Taint,
)
from asched.model.requests import PODS
from asched.model.resource_claims import ResourceSlice
from asched.model.resources import AnyObject
from asched.state.cluster import ClusterState

_NAMED: Final = 5
"""Nodes that a change names."""
_MODELS: Final = 2
_TAINTS: Final = 3
_MAX_ADDED: Final = 1000


def smallest(most: int, works: Callable[[int], bool]) -> int:
    """The smallest number from 1 to ``most`` that works, 0 if ``most`` does not."""
    if most < 1 or not works(most):
        return 0
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if works(middle):
            high = middle
        else:
            low = middle + 1
    return high


class DomainSearch(NamedTuple):
    """A domain in which the group nearly fits."""

    trial: GroupTrial
    finder: LackFinder
    tried: TriedPlacement
    lack: DomainLack

    @property
    def name(self) -> str:
        return self.lack.name

    @property
    def place(self) -> str:
        """For a summary: `` of rack-3``."""
        return f" of {self.name}" if self.name else ""

    def helps(self, change: AbstractContextManager[object]) -> bool:
        """Whether the group is admitted in the domain with a change."""
        if not self.trial.may_try():
            return False
        with change:
            return self.trial.admits(self.name)

    @property
    def example(self) -> PodInfo:
        """The first member that does not fit."""
        members = self.tried.result.members
        first = next((m for m in members if not m.fits), members[0])
        return first.queued.info

    def nodes(self) -> list[Node]:
        """The nodes of the domain, those with the most free resources first."""
        table = self.trial.state.nodes
        names = [table.names[row] for row in self.tried.placement.rows.tolist()]
        wanted = demand([self.example])

        def room(name: str) -> tuple[float, str]:
            row = table.row_of(name)
            free = (
                (int(table.allocatable(each)[row]) - int(table.requested(each)[row])) / number
                for each, number in wanted.items()
                if each != PODS
            )
            return -min(free, default=0.0), name

        objects = self.trial.state.objects(Node)
        return [objects[name] for name in sorted(names, key=room)]


def node_changes(domain: DomainSearch) -> Iterator[GroupChange]:
    """The changes of the domain's nodes that admit the group."""
    nodes = domain.nodes()
    yield from _uncordoned(domain, nodes)
    yield from _without_taints(domain, nodes)
    yield from _labelled(domain, nodes)
    yield from _more_nodes(domain)


def _on_nodes(
    domain: DomainSearch, changed: Sequence[AnyObject], change: GroupChange, text: str
) -> Iterator[GroupChange]:
    """The change on as few of these nodes as possible. ``text`` has a field for the nodes."""

    def works(count: int) -> bool:
        return domain.helps(domain.trial.changeable.replaced(*changed[:count]))

    count = smallest(len(changed), works)
    if count:
        names = tuple(node.name for node in changed[:count])
        yield replace(
            change,
            summary=text.format(nodes=nodes_text(names, domain.place)),
            size=count,
            domain=domain.name,
            nodes=names[:_NAMED],
            count=count,
        )


def nodes_text(names: Sequence[str], place: str) -> str:
    if len(names) == 1:
        return f"node {names[0]}{place}"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{len(names)} nodes{place}: {', '.join(names[:_NAMED])}{more}"


def _uncordoned(domain: DomainSearch, nodes: Sequence[Node]) -> Iterator[GroupChange]:
    cordoned = [node for node in nodes if node.spec.unschedulable]
    changed = [
        replace(node, spec=replace(node.spec, unschedulable=False, taints=_cordon_removed(node)))
        for node in cordoned
    ]
    change = GroupChange(GroupChangeKind.UNCORDON, "", 0)
    yield from _on_nodes(domain, changed, change, "uncordon {nodes}")


def _cordon_removed(node: Node) -> tuple[Taint, ...]:
    # The node controller removes the taint together with spec.unschedulable.
    return tuple(taint for taint in node.spec.taints if taint.key != UNSCHEDULABLE_TAINT)


def _without_taints(domain: DomainSearch, nodes: Sequence[Node]) -> Iterator[GroupChange]:
    tolerations = domain.example.pod.spec.tolerations
    tainted: dict[tuple[str, str, str], list[Node]] = {}
    for node in nodes:
        for taint in node.spec.taints:
            if taint.effect not in (NO_SCHEDULE, NO_EXECUTE) or taint.key == UNSCHEDULABLE_TAINT:
                continue
            if not any(toleration.tolerates(taint) for toleration in tolerations):
                tainted.setdefault((taint.key, taint.value, taint.effect), []).append(node)
    most = sorted(tainted.items(), key=lambda item: (-len(item[1]), item[0]))[:_TAINTS]
    for (key, value, effect), having in most:
        changed = [_without(node, (key, value, effect)) for node in having]
        kind = GroupChangeKind.REMOVE_TAINT
        change = GroupChange(kind, "", 0, key=key, value=value, effect=effect)
        label = _braced(f"{key}={value}:{effect}" if value else f"{key}:{effect}")
        yield from _on_nodes(domain, changed, change, f"remove the taint {label} from {{nodes}}")


def _without(node: Node, removed: tuple[str, str, str]) -> Node:
    kept = tuple(t for t in node.spec.taints if (t.key, t.value, t.effect) != removed)
    return replace(node, spec=replace(node.spec, taints=kept))


def _braced(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _labelled(domain: DomainSearch, nodes: Sequence[Node]) -> Iterator[GroupChange]:
    """Labels that the members' node selectors name."""
    pod = domain.example.pod
    wanted = dict.fromkeys(label for node in nodes for label in selector_labels(pod, node))
    for key, value in [*wanted][:_TAINTS]:
        if value is None:
            continue
        lacking = [node for node in nodes if node.metadata.labels.get(key) != value]
        changed = [labelled(node, key, value) for node in lacking]
        change = GroupChange(GroupChangeKind.LABEL_NODES, "", 0, key=key, value=value)
        text = f"set the label {_braced(f'{key}={value}')} of {{nodes}}"
        yield from _on_nodes(domain, changed, change, text)


def labelled(node: Node, key: str, value: str) -> Node:
    labels = {**node.metadata.labels, key: value}
    return replace(node, metadata=replace(node.metadata, labels=labels))


# -- more nodes -----------------------------------------------------------------------------------


def _more_nodes(domain: DomainSearch) -> Iterator[GroupChange]:
    key = domain.finder.found.members.rules.topology_key
    inside = domain.trial.state.nodes.node(int(domain.tried.placement.rows[0])).labels
    own_label = {key: inside[key]} if key else {}
    for model in _models(domain):

        def works(count: int, model: Node = model) -> bool:
            copies = [
                item
                for number in range(count)
                for item in node_copy(
                    domain.trial.state, model, f"{model.name}-copy-{number}", own_label
                )
            ]
            return domain.helps(domain.trial.changeable.added(*copies))

        count = next((n for most in _enough(domain, model) if (n := smallest(most, works))), 0)
        if count:
            plural = "nodes" if count > 1 else "node"
            place = f" to {domain.name}" if domain.name else ""
            yield GroupChange(
                GroupChangeKind.ADD_NODES,
                f"add {count} {plural} like {model.name}{place}",
                count,
                domain=domain.name,
                nodes=(model.name,),
                count=count,
            )
            return


def _models(domain: DomainSearch) -> list[Node]:
    """A node that a member got, in the domain and elsewhere; or else the largest nodes that accept
    the members."""
    objects, table = domain.trial.state.objects(Node), domain.trial.state.nodes
    used = [*placed_in(domain.tried.result)][:1]
    elsewhere = [name for one in domain.finder.found.tried for name in placed_in(one.result)][:1]
    if used or elsewhere:
        return [objects[name] for name in dict.fromkeys((*used, *elsewhere))]
    usable = domain.finder.usable
    here = [row for row in domain.tried.placement.rows.tolist() if usable[row]]
    names = [table.names[row] for row in here or np.flatnonzero(usable).tolist()]
    slots = {name: _slots(domain, objects[name]) for name in names}
    return [objects[name] for name in sorted(names, key=lambda n: (-slots[n], n))[:_MODELS]]


def _slots(domain: DomainSearch, node: Node) -> int:
    """How many members like the one that does not fit an empty node like this one holds."""
    table = domain.trial.state.nodes
    row = table.row_of(node.name)
    wanted = demand([domain.example])
    slots = [int(table.allocatable(name)[row]) // n for name, n in wanted.items() if name != PODS]
    return min([*slots, int(table.allowed_pods[row])])


def _enough(domain: DomainSearch, model: Node) -> list[int]:
    """Numbers of nodes: the last one suffices if any number does, others are more likely."""
    slots, more = _slots(domain, model), max(1, domain.finder.missing - domain.lack.fits)
    if slots < 1:
        return []
    likely = -(-more // slots)
    return [most for most in dict.fromkeys((likely, more)) if most <= _MAX_ADDED]


def node_copy(
    state: ClusterState, model: Node, name: str, labels: Mapping[str, str]
) -> Iterator[AnyObject]:
    """A node like another one, with these labels, and devices like those of the other one."""
    labels = {**model.metadata.labels, HOSTNAME_LABEL: name, **labels}
    metadata = replace(model.metadata, name=name, uid=f"uid-{name}", labels=labels)
    yield replace(model, metadata=metadata)
    # Callers add the copies to the same state.
    for item in tuple(state.objects(ResourceSlice).values()):
        if item.spec.node_name != model.name:
            continue
        own = f"{item.name}-{name}"
        pool = replace(item.spec.pool, name=f"{item.spec.pool.name}-{name}")
        yield replace(
            item,
            metadata=replace(item.metadata, name=own, uid=f"uid-{own}"),
            spec=replace(item.spec, node_name=name, pool=pool),
        )


def label_changes(trial: GroupTrial, key: str, nodes: Sequence[str]) -> Iterator[GroupChange]:
    """The label of the topology domain on these nodes, if no node has it."""
    value = "domain-1"
    objects = trial.state.objects(Node)
    changed = [labelled(objects[name], key, value) for name in nodes]
    if not changed:
        return
    with trial.changeable.replaced(*changed):
        admitted = trial.admits()
    if admitted:
        names = tuple(nodes)
        yield GroupChange(
            GroupChangeKind.LABEL_NODES,
            f"set the label {key} to one value, such as {value}, on {nodes_text(names, '')}",
            len(names),
            nodes=names[:_NAMED],
            count=len(names),
            key=key,
            value=value,
        )
