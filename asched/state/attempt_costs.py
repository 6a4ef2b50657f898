"""What an attempt costs in the cluster as it is now, in counted steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asched.dra.extended import ExtendedResources
from asched.framework.pod_groups import WITHOUT_NODE, group_of
from asched.framework.pod_info import PodInfo
from asched.model.pod import Pod
from asched.model.resource_claims import DeviceClass, ResourceClaim
from asched.model.storage import PersistentVolume, PersistentVolumeClaim
from asched.state import attempt_budget
from asched.state.attempt_budget import (
    attempt_steps,
    form_steps,
    gang_steps,
    plain_preemption_steps,
    preemption_steps,
    volume_steps,
)
from asched.state.charged_forms import TermForms
from asched.state.claim_searches import (
    STEPS_OF_SEARCH_STEP,
    SpecialAmounts,
    most_forms,
    search_form,
    search_steps,
    special_amounts,
)

if TYPE_CHECKING:
    from asched.state.cluster import ClusterState


class AttemptCosts:
    """Estimates for the pods of a cluster. Reads the state and changes nothing."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._extended = ExtendedResources()
        self._extended_version = 0
        self._term_forms = TermForms()

    def is_cheap(self, info: PodInfo) -> bool:
        """Whether the pod has no affinity, constraints and devices, and few requirements, host
        ports and volumes: its attempts are free."""
        spec = info.pod.spec
        if spec.affinity is not None or spec.topology_spread_constraints or spec.resource_claims:
            return False
        if (spec.node_selector or spec.volumes or info.shape.ports) and self._own_steps(info):
            return False
        if DeviceClass not in self._state.object_store.by_kind:
            return True
        return not self._asks_for_devices(info)

    def of_attempt(
        self, info: PodInfo, *, preemption: bool, search_steps: int | None = None
    ) -> int:
        """The estimated steps of an attempt now; 0 if it is free. With ``preemption``, those of a
        search for victims are included if there can be any. ``search_steps``: one was made, and
        took so many if it took long."""
        steps = self._own_steps(info)
        if preemption and self._has_victims(info):
            steps += self._gang_steps(info)
            if search_steps is None:
                search_steps = self._state.guards.budgets.search_steps(info.namespace)
            steps += max(search_steps, self._usual_search(info))
        return steps

    def _usual_search(self, info: PodInfo) -> int:
        """The estimated steps of a search for victims that ends soon; 0 if it is free."""
        nodes = self._state.nodes.cluster_size
        steps = 0 if self.is_cheap(info) else preemption_steps(info.pod, nodes)
        if not steps and self._state.queue.has_active_of_others(info.namespace):
            steps = plain_preemption_steps(info.pod, nodes, len(self._state.pods))
        return steps

    def _own_steps(self, info: PodInfo) -> int:
        """The estimated steps of an attempt without a search for victims; 0 if it is free."""
        state, pod = self._state, info.pod
        nodes = state.nodes.cluster_size
        steps = attempt_steps(pod, nodes, len(state.pods))
        if pod.spec.volumes:
            volumes = len(state.objects(PersistentVolume))
            steps += volume_steps(self._unbound_claims(pod), nodes, volumes)
        return steps

    def _unbound_claims(self, pod: Pod) -> list[PersistentVolumeClaim]:
        found = self._state.objects(PersistentVolumeClaim)
        named = [v.persistent_volume_claim for v in pod.spec.volumes]
        claims = (found.get(f"{pod.namespace}/{name.claim_name}") for name in named if name)
        return [claim for claim in claims if claim is not None and not claim.spec.volume_name]

    def is_charged(self, info: PodInfo) -> bool:
        """Whether a pod that is cheap otherwise is charged if it is rejected now."""
        if not self._has_victims(info):
            return False
        searched = self._state.guards.budgets.search_steps(info.namespace)
        return searched > 0 or self._usual_search(info) > 0 or self._gang_steps(info) > 0

    def yields(self, info: PodInfo) -> bool:
        """Whether the pod, if it is put off, may be attempted before its turn while no pod is
        active: it is limited for others only."""
        return group_of(info.pod) is None and self.is_cheap(info) and self.is_short(info)

    def is_short(self, info: PodInfo) -> bool:
        """Whether the attempt is limited for others only, if at all."""
        steps = self.of_attempt(info, preemption=True) + self.of_first(info)
        return steps <= attempt_budget.SHORT_STEPS

    def is_limited(self, info: PodInfo) -> bool:
        """Whether the attempt of a pod that is not cheap counts for its namespace now."""
        others_wait = self._state.queue.has_active_of_others(info.namespace)
        return others_wait or not self.is_short(info)

    def limits(self, namespace: str, steps: int) -> bool:
        """Whether an attempt that takes so many steps counts for the namespace now."""
        return steps > attempt_budget.SHORT_STEPS or self._state.queue.has_active_of_others(
            namespace
        )

    def checks_gang(self, info: PodInfo) -> bool:
        """Whether an attempt may check at length that preemption completes the pod's gang."""
        return self._has_victims(info) and self._gang_steps(info) > 0

    def _has_victims(self, info: PodInfo) -> bool:
        """Whether there are less important pods that the pod may evict."""
        lowest = self._state.lowest_priority
        if lowest is None or lowest >= info.priority:
            return False
        return info.pod.spec.preemption_policy != "Never"

    def _gang_steps(self, info: PodInfo) -> int:
        """The estimated steps of the check of the pod's gang before it evicts pods."""
        state, key = self._state, group_of(info.pod)
        profile = state.profiles.get(info.pod.spec.scheduler_name)
        if key is None or profile is None or profile.group_cycle is not None:
            return 0
        statuses = state.group_members(key).statuses
        forms = {state.pods[k].info.shape for k, s in statuses.items() if s in WITHOUT_NODE}
        return gang_steps(len(forms), state.nodes.cluster_size)

    def of_first(self, info: PodInfo) -> int:
        """The estimated steps that only the first attempt of the pod's form takes, or those of a
        search that took long; 0 if there are none."""
        state, pod = self._state, info.pod
        nodes = state.nodes.cluster_size
        claims = self._search_form(info)
        steps = state.guards.searches.repeated_steps(claims)
        if claims and state.guards.searches.turn_ns(claims) is None:
            objects = state.objects(ResourceClaim)
            steps = search_steps(pod, objects, self._special(info), nodes)
        terms = self._term_form(pod)
        if terms and state.guards.terms.turn_ns(terms) is None:
            steps += form_steps(pod, nodes, len(state.pods))
        return steps

    def note_forms(self, info: PodInfo, from_ns: int) -> None:
        """The first attempt of the pod's forms is charged: others are free from that time on."""
        guards = self._state.guards
        nodes = self._state.nodes.cluster_size
        guards.searches.note(self._search_form(info), from_ns, most_forms(nodes))
        guards.terms.note(self._term_form(info.pod), from_ns)

    def note_search(self, info: PodInfo, steps: int) -> None:
        """A search for a pod of this form took long. Others are charged for it, too."""
        form = self._search_form(info)
        self._state.guards.searches.note_repeated(form, steps * STEPS_OF_SEARCH_STEP)

    def shared_turn_ns(self, info: PodInfo) -> int:
        """When a pod with a form of this pod has its turn; 0 if there is none."""
        guards = self._state.guards
        claims = self._search_form(info)
        if guards.searches.repeated_steps(claims):
            return 0  # each search takes long
        return max(
            guards.searches.turn_ns(claims) or 0,
            guards.terms.turn_ns(self._term_form(info.pod)) or 0,
        )

    def _term_form(self, pod: Pod) -> str:
        """The form of the pod's affinity terms and spread constraints; empty if counting pods for
        them is free."""
        if not form_steps(pod, self._state.nodes.cluster_size, len(self._state.pods)):
            return ""
        return self._term_forms.of(pod)

    def _search_form(self, info: PodInfo) -> str:
        """The form of what has to be allocated for the pod; empty if there is nothing."""
        special = self._special(info)
        if not special and not info.pod.spec.resource_claims:
            return ""
        return search_form(info.pod, self._state.objects(ResourceClaim), special)

    def _special(self, info: PodInfo) -> SpecialAmounts:
        """The extended resources of the pod that classes provide."""
        if not self._asks_for_devices(info):
            return ()
        return special_amounts(info.pod, self._extended)

    def _asks_for_devices(self, info: PodInfo) -> bool:
        state = self._state
        if not state.plugin_context.feature_gates.dra_extended_resource:
            return False
        version = state.object_store.version(DeviceClass)
        if version != self._extended_version:
            self._extended = ExtendedResources(state.objects(DeviceClass).values())
            self._extended_version = version
        return not self._extended.names.isdisjoint(info.shape.requests)
