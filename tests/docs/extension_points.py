"""When each extension point runs, what it may do and costs: data for ``docs/reference/plugins``.

``python -m tests.docs.plugin_pages`` writes a page for each extension point from this and from the
classes in :mod:`asched.framework.interface`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from asched.framework.interface import (
    EnqueueExtensions,
    ExtensionPoint,
    NormalizeScore,
    Plugin,
    PreFilterExtensions,
    WaitingPodReviewer,
)

PURE: Final = (
    "Pure: the answer depends only on the arguments and on `handle`. The only clock is"
    " `handle.cluster.now_ns`, the only random numbers are those of `handle.stable_random`. No I/O."
)
MAY_BE_RECORDED: Final = (
    f"{PURE} A plugin that cannot be pure declares `pure = False`. Its answers are recorded, and a"
    f" replay does not call it."
)
ACTS: Final = (
    "Not part of a decision, and not called in a replay. It may wait, call the API server through"
    " its client, and fail."
)
FAILS_THE_ATTEMPT: Final = (
    "An exception, or an answer of the wrong type, shape or range, fails this attempt. The message"
    " names the plugin. The pod is retried after its backoff; other pods are not affected."
)


class PointContract(NamedTuple):
    """The contract of one extension point."""

    when: str
    may: str
    cost: str
    purity: str
    failing: str
    companions: tuple[type[Plugin], ...] = ()
    """Further base classes for plugins of the point."""


CONTRACTS: Final[Mapping[ExtensionPoint, PointContract]] = {
    ExtensionPoint.PRE_ENQUEUE: PointContract(
        when="When a pending pod is observed, when it changes, and when a hint of the plugin"
        " returns QUEUE. Before the pod enters the active queue.",
        may="Gate the pod: keep it out of the active queue. That is not an attempt, and no"
        " condition is written.",
        cost="One call per pod and event, by the fold. It should take microseconds.",
        purity=f"{PURE} The fold calls it in every replay, so it cannot be impure.",
        failing="The pod is gated, with the plugin's name.",
        companions=(EnqueueExtensions,),
    ),
    ExtensionPoint.QUEUE_SORT: PointContract(
        when="When the active queue is ordered. One plugin orders it for all profiles.",
        may="Decide which of two pods is scheduled first.",
        cost="With `sort_key`, one call per pod that enters the queue. Without it, about"
        " log2(pods) calls of `less`.",
        purity=PURE,
        failing="A pod for which it raises is sorted last. Pods that cannot be compared count as"
        " equal, in order of arrival.",
    ),
    ExtensionPoint.PRE_FILTER: PointContract(
        when="Once per attempt, before the filters. With a scope other than CLUSTER, once per pod"
        " shape.",
        may="Prepare data for Filter in the `CycleState`; reject the pod; name the only nodes that"
        " can be feasible; return Skip, so that its Filter is not called.",
        cost="One call per attempt. `applies_to` avoids it for pods to which the plugin does not"
        " apply.",
        purity=MAY_BE_RECORDED,
        failing=FAILS_THE_ATTEMPT,
        companions=(PreFilterExtensions, EnqueueExtensions),
    ),
    ExtensionPoint.FILTER: PointContract(
        when="In each attempt, after all PreFilters, and on hypothetical nodes during preemption.",
        may="Accept or reject each node, with reasons. Unschedulable: preemption may help."
        " UnschedulableAndUnresolvable: it would not.",
        cost="`FilterPlugin`: one call per node, with about 0.15 us of overhead."
        " `FilterAllPlugin`: one call for all nodes. With a scope narrower than CLUSTER, pods of"
        " one shape share the answers. The guide has measurements.",
        purity=MAY_BE_RECORDED,
        failing=FAILS_THE_ATTEMPT,
        companions=(EnqueueExtensions,),
    ),
    ExtensionPoint.POST_FILTER: PointContract(
        when="When no node is feasible. Plugins are called in order until one returns Success or"
        " UnschedulableAndUnresolvable.",
        may="Select victims and nominate a node, which the daemon carries out. `handle.dry_run`"
        " runs the filters with pods added or removed.",
        cost="One call per attempt without a feasible node.",
        purity=PURE,
        failing=FAILS_THE_ATTEMPT,
    ),
    ExtensionPoint.PRE_SCORE: PointContract(
        when="Once per attempt with more than one feasible node, before scoring. With a scope"
        " other than CLUSTER, once per pod shape.",
        may="Prepare data for Score in the `CycleState`; return Skip, so that its Score is not"
        " called.",
        cost="One call per attempt.",
        purity=MAY_BE_RECORDED,
        failing=FAILS_THE_ATTEMPT,
    ),
    ExtensionPoint.SCORE: PointContract(
        when="In each attempt with more than one feasible node. With a scope other than CLUSTER,"
        " also for nodes that other plugins rejected; these scores are cached.",
        may="Score each node from 0 to 100, or with any integer if the plugin also normalizes. The"
        " profile's weight multiplies the score.",
        cost="As for Filter.",
        purity=MAY_BE_RECORDED,
        failing=FAILS_THE_ATTEMPT,
        companions=(NormalizeScore,),
    ),
    ExtensionPoint.PLACEMENT_GENERATE: PointContract(
        when="Once in each group cycle, before the members are tried. Only for profiles that"
        " schedule whole groups. As in kube-scheduler, only the first plugin of a profile runs.",
        may="Return the placements to try: sets of nodes, such as topology domains. The members"
        " then get nodes of one placement only.",
        cost="One call per group cycle. Each placement costs a pass over all members.",
        purity=f"{PURE} The plugin must be pure: a group cycle is one decision.",
        failing="The group cycle fails: all members back off with the message of the plugin.",
        companions=(EnqueueExtensions,),
    ),
    ExtensionPoint.PLACEMENT_SCORE: PointContract(
        when="In each group cycle with more than one placement in which the group is feasible.",
        may="Score a placement by the members that fit there, from 0 to 100, or with any integer"
        " if the plugin also normalizes. The profile's weight multiplies the score.",
        cost="One call per feasible placement.",
        purity=f"{PURE} The plugin must be pure: a group cycle is one decision.",
        failing="As for PlacementGenerate.",
    ),
    ExtensionPoint.RESERVE: PointContract(
        when="`reserve` when a node is selected. `on_reserved`, `unreserve`, `on_bound` and"
        " `on_deleted` when the fold applies the decision and its outcome: live, after a restart"
        " and in every replay.",
        may="Reject the node; record a reservation with the decision. The other methods receive it,"
        " and maintain the plugin's own state.",
        cost="One call per assignment.",
        purity=f"{PURE} The plugin's state must depend on reservations only, so that a restart"
        f" rebuilds it.",
        failing="`reserve`: as for Filter. The fold calls the other methods, which must not raise;"
        " an exception is logged, and the plugin's state may be wrong afterwards.",
        companions=(EnqueueExtensions,),
    ),
    ExtensionPoint.PERMIT: PointContract(
        when="When a node is selected and reserved. From then on the pod is assumed on the node.",
        may="Let the pod continue, reject it, or let it wait for a time. Through"
        " `handle.waiting_pods()` it may allow or reject waiting pods.",
        cost="One call per assignment.",
        purity=f"{PURE} Calls to `allow` and `reject` are recorded as decisions.",
        failing=FAILS_THE_ATTEMPT,
        companions=(WaitingPodReviewer, EnqueueExtensions),
    ),
    ExtensionPoint.PRE_BIND: PointContract(
        when="After the decision is durable in the journal, before the pod is bound.",
        may="Do work that must finish before binding. Calls to the API server must be declared in"
        " `needs`.",
        cost="Runs in its own task, so other pods do not wait. `pre_bind_pre_flight` avoids the"
        " call.",
        purity=ACTS,
        failing="The binding fails: the pod is forgotten and retried. The same applies if it takes"
        " longer than `time_limit_s`.",
    ),
    ExtensionPoint.BIND: PointContract(
        when="After PreBind. Plugins are called in order until one does not return Skip.",
        may="Bind the pod, with `client.bind` or in another way.",
        cost="As for PreBind.",
        purity=ACTS,
        failing="The pod is read back, because it may be bound. If it is not, the pod is forgotten"
        " and retried.",
    ),
    ExtensionPoint.POST_BIND: PointContract(
        when="After the pod was bound.",
        may="Notify other systems, or clean up.",
        cost="As for PreBind.",
        purity=ACTS,
        failing="The failure is logged and counted. The pod stays bound.",
    ),
}
