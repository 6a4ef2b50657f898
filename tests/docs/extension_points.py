"""What the extension points promise and demand, beyond what their signatures say.

``docs/plugins`` has a page for each, made of this and of the classes in
:mod:`asched.framework.interface` (``python -m tests.docs.plugin_pages``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from asched.framework.interface import (
    EnqueueExtensions,
    ExtensionPoint,
    NormalizeScore,
    PermitReview,
    Plugin,
    PreFilterExtensions,
)

PURE: Final = (
    "Pure: the answer follows from what the plugin is shown. No clock (`handle.cluster.now_ns` is the"
    " time), no random numbers (`handle.draw` gives some that replay), no I/O, no memory that changes an"
    " answer."
)
MAY_BE_RECORDED: Final = (
    f"{PURE} A plugin that cannot be declares `pure = False`: its answers are recorded, and a replay does"
    " not call it."
)
ACTS: Final = (
    "Not part of a decision: it may wait, talk to the API server through its client, and fail. It is"
    " not run in a replay."
)
FAILS_THE_ATTEMPT: Final = (
    "What it raises, and an answer of the wrong type, shape or range, fails this attempt of this pod with"
    " the plugin's name. The pod is tried again after its backoff; nothing else is affected."
)


class PointContract(NamedTuple):
    """What holds of one extension point."""

    when: str
    may: str
    cost: str
    purity: str
    failing: str
    companions: tuple[type[Plugin], ...] = ()
    """Further classes that a plugin of the point may derive from."""


CONTRACTS: Final[Mapping[ExtensionPoint, PointContract]] = {
    ExtensionPoint.PRE_ENQUEUE: PointContract(
        when="When a pending pod is seen, when it changes, and when one of the plugin's events says"
        " QUEUE. Before the pod enters the active queue.",
        may="Keep the pod out of the queue. It costs no attempt, and no condition is written.",
        cost="Once for each pod that is seen. The fold calls it, so it has to take microseconds.",
        purity=PURE + " It is asked by the fold, in every replay too, so it cannot be impure.",
        failing="The pod is kept out, with the plugin's name, as by a no.",
        companions=(EnqueueExtensions,),
    ),
    ExtensionPoint.QUEUE_SORT: PointContract(
        when="Whenever the active queue is put in order. One plugin orders it for all profiles.",
        may="Say which of two pods is tried first.",
        cost="With `sort_key` once for each pod that enters; without, `less` is asked some log2(pods)"
        " times for each.",
        purity=PURE,
        failing="A pod about which it raises comes after all others; what cannot be compared counts as"
        " equal, and goes in order of arrival.",
    ),
    ExtensionPoint.PRE_FILTER: PointContract(
        when="Once for each attempt, before the filters; for a scope other than CLUSTER once for all"
        " like pods.",
        may="Prepare what Filter needs, in the `CycleState`; reject the pod as a whole; name the only"
        " nodes worth looking at; answer Skip, so that its Filter is not asked.",
        cost="Once for each attempt. `applies_to` saves even that for pods that it has nothing to do with.",
        purity=MAY_BE_RECORDED,
        failing=FAILS_THE_ATTEMPT,
        companions=(PreFilterExtensions, EnqueueExtensions),
    ),
    ExtensionPoint.FILTER: PointContract(
        when="For each attempt, after all PreFilters. Also on supposed nodes, while preemption tries"
        " which pods would have to go.",
        may="Say of each node whether the pod can run there, with a reason where not. Unschedulable: the"
        " eviction of pods may help. UnschedulableAndUnresolvable: it would not.",
        cost="Written for one node: a call for each node, some 0.15 us beside what the plugin does;"
        " written for all nodes: a call for all of them. A scope narrower than CLUSTER saves nearly"
        " all of it for like pods. The guide has measurements.",
        purity=MAY_BE_RECORDED,
        failing=FAILS_THE_ATTEMPT,
        companions=(EnqueueExtensions,),
    ),
    ExtensionPoint.POST_FILTER: PointContract(
        when="When no node is feasible. Plugins are asked in order until one made room, or one is sure"
        " that nothing will.",
        may="Make room: name victims, nominate a node. It may try pods on and off nodes with"
        " `handle.dry_run`. The daemon carries it out.",
        cost="Once for each attempt that found no node.",
        purity=PURE,
        failing=FAILS_THE_ATTEMPT,
    ),
    ExtensionPoint.PRE_SCORE: PointContract(
        when="Once for each attempt with more than one feasible node, before the scores; for a scope"
        " other than CLUSTER once for all like pods.",
        may="Prepare what Score needs, in the `CycleState`; answer Skip, so that its Score is not asked.",
        cost="Once for each attempt.",
        purity=MAY_BE_RECORDED,
        failing=FAILS_THE_ATTEMPT,
    ),
    ExtensionPoint.SCORE: PointContract(
        when="For each attempt with more than one feasible node. For a scope other than CLUSTER it is"
        " also asked about nodes that other plugins refused, and its answers are kept.",
        may="Give each node points, 0 to 100, or any integers where the plugin also normalises them. They"
        " are multiplied by the weight that the profile gives, and added up.",
        cost="As for Filter.",
        purity=MAY_BE_RECORDED,
        failing=FAILS_THE_ATTEMPT,
        companions=(NormalizeScore,),
    ),
    ExtensionPoint.RESERVE: PointContract(
        when="`reserve` when a node was chosen. `on_reserved`, `unreserve`, `on_bound` and `on_deleted` when the"
        " decision, and what became of it, is folded: live, after a restart and in every replay.",
        may="Turn the node down; add a note to the decision, which comes back with each of the others."
        " The others keep the plugin's own books.",
        cost="Once for each assignment.",
        purity=PURE + " The books follow from the notes alone, or a restart would lose them.",
        failing="`reserve`: as for Filter. The others are called by the fold, and must not raise: what"
        " they raise is contained, and the books are the plugin's own affair then.",
        companions=(EnqueueExtensions,),
    ),
    ExtensionPoint.PERMIT: PointContract(
        when="When a node was chosen and reserved. The pod is assumed to be there from then on.",
        may="Let the pod go on, turn it down, or hold it for a time. Of pods that are held it may say"
        " through `handle.waiting_pods()` that they go on, or not.",
        cost="Once for each assignment.",
        purity=PURE + " What it says of held pods is recorded as decisions.",
        failing=FAILS_THE_ATTEMPT,
        companions=(PermitReview, EnqueueExtensions),
    ),
    ExtensionPoint.PRE_BIND: PointContract(
        when="After the decision is durable in the journal, before the pod is bound.",
        may="Do what must be done first. What it asks of the API server it has to declare in `needs`.",
        cost="A task of its own: other pods do not wait for it. `pre_bind_pre_flight` saves pods with"
        " which it has nothing to do even that.",
        purity=ACTS,
        failing="The binding has failed: the pod gives its node back and is tried again. So it is where"
        " it takes longer than `time_limit_s`.",
    ),
    ExtensionPoint.BIND: PointContract(
        when="After PreBind. Plugins are asked in order until one does not answer Skip.",
        may="Bind the pod, by `client.bind` or in a way of its own.",
        cost="As for PreBind.",
        purity=ACTS,
        failing="The pod is read back, since it may be bound all the same. Where it is not, the pod gives"
        " its node back and is tried again.",
    ),
    ExtensionPoint.POST_BIND: PointContract(
        when="After the pod was bound.",
        may="Tell others, or tidy up.",
        cost="As for PreBind.",
        purity=ACTS,
        failing="It is logged and counted. The pod is bound all the same.",
    ),
}
