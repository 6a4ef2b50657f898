"""TopologyPlacementGenerator: one placement for each topology domain of a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from asched.framework.events import (
    ActionType,
    ClusterEvent,
    ClusterEventWithHint,
    EventResource,
    QueueingHint,
)
from asched.framework.interface import EnqueueExtensions, PlacementGeneratePlugin
from asched.framework.nodes import LabelColumn, Nodes
from asched.framework.placements import GeneratedPlacements, GroupInCycle, GroupPlacement
from asched.framework.pod_groups import find_group, group_of, rules_of
from asched.framework.status import Status
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import Pod
from asched.plugins.shared import queue_if

_UNDETERMINED = "cannot determine domain for already scheduled pods: "


class TopologyPlacementGenerator(PlacementGeneratePlugin, EnqueueExtensions):
    """The values of the node label that ``schedulingConstraints.topology`` names, in their order.

    Members that run already determine the domain. Nodes without the label are in no placement. A
    group without the constraint has one placement without a name, all nodes.
    """

    name: ClassVar[str] = "TopologyPlacementGenerator"
    api_version: ClassVar[int] = 1

    def generate_placements(self, group: GroupInCycle, nodes: Nodes) -> GeneratedPlacements:
        key = group.rules.topology_key
        if not key:
            return GeneratedPlacements(
                placements=(GroupPlacement("", np.flatnonzero(nodes.alive)),)
            )
        labels = nodes.label(key)
        required = _domain_of_running(group, nodes, labels)
        if isinstance(required, Status):
            return GeneratedPlacements(required)
        present = np.flatnonzero(nodes.alive & (labels.ids >= 0))
        ids = labels.ids[present]
        found = [
            (labels.word(number), present[ids == number]) for number in np.unique(ids).tolist()
        ]
        return GeneratedPlacements(
            placements=tuple(
                GroupPlacement(name, rows)
                for name, rows in sorted(found, key=lambda placement: placement[0])
                if required is None or name == required
            )
        )

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        action = ActionType.ADD | ActionType.UPDATE_NODE_LABEL
        event = ClusterEvent(EventResource.NODE, action)
        return (ClusterEventWithHint(event, self._domain_may_fit),)

    def _domain_may_fit(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        """Queue if a node enters a domain of the pod's group."""
        key = group_of(pod)
        group = None if key is None else find_group(self.handle.cluster, key)
        if group is None or not isinstance(new, Node):
            return QueueingHint.SKIP
        label = rules_of(group).topology_key
        before = old.labels.get(label) if isinstance(old, Node) else None
        return queue_if(bool(label) and label in new.labels and new.labels[label] != before)


def _domain_of_running(
    group: GroupInCycle, nodes: Nodes, labels: LabelColumn
) -> str | Status | None:
    """The domain of the members that run; None if none runs; an error if there is no such one."""
    domain: str | None = None
    for member in group.running:
        row = nodes.row_of(member.node)
        if row is None:
            return Status.error(
                f'{_UNDETERMINED}getting node for pod {member.pod.key}: node "{member.node}" not'
                " found"
            )
        number = int(labels.ids[row])
        if number < 0:
            return Status.error(f"{_UNDETERMINED}no topology domain found for pod {member.pod.key}")
        found = labels.word(number)
        if domain is not None and found != domain:
            return Status.error(
                f"{_UNDETERMINED}more than 1 domain found for pod group: {domain}, {found}"
            )
        domain = found
    return domain
