"""Fault rates of each class of seeds.

A rate is a probability per occasion unless its name says otherwise; zero disables the fault.
"""

from __future__ import annotations

from enum import Enum

import msgspec


class ApiFaults(msgspec.Struct, frozen=True):
    """Faults of requests."""

    unreachable: float = 0.0
    """The connection is refused; the request is not sent."""
    lost: float = 0.0
    """The connection breaks before the server executes the request."""
    no_response: float = 0.0
    """The server executes the request; the connection breaks before the response."""
    delayed: float = 0.0
    """The request is executed after the client's timeout."""
    throttled: float = 0.0
    """429 with Retry-After."""
    failed: float = 0.0
    """500, 503 or 504; not executed."""
    failed_but_executed: float = 0.0
    """500, 503 or 504, although executed."""
    executed_later: float = 0.0
    """504; executed up to a minute later, because the handler continues."""
    slow: float = 0.0
    """The response takes seconds."""
    outages_per_hour: float = 0.0
    upgrades_per_hour: float = 0.0
    """Restarts with the API versions of another Kubernetes version."""
    going_down: float = 0.2
    """A lost response starts an outage."""


class WatchFaults(msgspec.Struct, frozen=True):
    """Faults of watches, drawn when events arrive and every minute."""

    late: float = 0.0
    """Events arrive seconds later than those of other resources."""
    broken: float = 0.0
    """The connection breaks, with the loss of events in flight."""
    silent: float = 0.0
    """No further events arrive, and the connection does not break."""
    ended: float = 0.0
    """The server ends the watch."""
    expired: float = 0.0
    """410 within the watch; the watch history is dropped."""
    repeated: float = 0.0
    """The last event of a chunk is repeated."""
    invalid: float = 0.0
    """A line that is not JSON."""
    split: float = 0.0
    """A chunk arrives in two pieces."""
    lost: float = 0.0
    """One event of a chunk never arrives, although the watch continues after it."""


class JournalFaults(msgspec.Struct, frozen=True):
    """Faults of the journal."""

    slow: float = 0.0
    """A commit takes up to some seconds."""
    hanging: float = 0.0
    """A commit takes minutes."""
    full: float = 0.0
    busy: float = 0.0
    failed: float = 0.0
    """An error, nothing stored."""
    failed_but_stored: float = 0.0
    """An error, although it is stored."""
    outages_per_hour: float = 0.0
    """Periods in which every append fails."""
    claim: float = 0.0
    """The claim at the start fails."""
    checkpoint: float = 0.0
    """A checkpoint cannot be written."""


class ProcessFaults(msgspec.Struct, frozen=True):
    crashes_per_hour: float = 0.0
    stops_per_hour: float = 0.0
    """Orderly ones."""
    freezes_per_hour: float = 0.0
    """The process is suspended for a while."""
    fencings_per_hour: float = 0.0
    """Another daemon claims the journal while this one runs."""
    jumps_per_hour: float = 0.0
    """Of the wall clock."""
    reloads_per_hour: float = 0.0
    """Other configurations, applied by running daemons."""


class PluginFaults(msgspec.Struct, frozen=True):
    enabled: bool = False
    raising: float = 0.0
    """PreBind raises."""
    hanging: float = 0.0
    """PreBind does not return."""
    slow: float = 0.0
    invalid: float = 0.0
    """PreBind returns a value that is not a Status, or cancels itself."""


class Workload(msgspec.Struct, frozen=True):
    """Activity of the cluster: weights of the next change."""

    mean_gap_s: float = 3.0
    """Between two changes."""
    scale: int = 10
    """An app gets more or fewer replicas."""
    new_app: int = 6
    drop_app: int = 3
    delete_pod: int = 6
    relabel: int = 2
    node_flap: int = 1
    """NotReady, and ready again."""
    cordon: int = 1
    node_lost: int = 1
    """Deleted with its pods; usually recreated under the same name."""
    node_added: int = 1
    mass_deletion: int = 0
    foreign: int = 1
    """Another client binds a pod."""
    gate: int = 1
    apps: int = 3
    """At the start."""
    claims: float = 0.0
    """Share of new apps that use devices."""
    devices: int = 0
    """Slices and claims are changed by others."""
    gangs: float = 0.0
    """Share of new apps that are gangs."""
    group_changes: int = 0
    """PodGroups get another topology or are deleted, usually to be created again."""
    trees: float = 0.0
    """Share of new gangs below a CompositePodGroup. Also minimums of groups change."""
    sessions: float = 0.0
    """Share of apps for batch sessions."""
    ending: float = 0.4
    """Probability that a terminating pod ends at a tick of its kubelet."""
    urgent: float = 0.25
    """Share of apps with a high priority."""
    constrained: float = 0.3
    """Share of apps with affinity, spreading, ports, a zone or tolerations."""


class Election(Enum):
    """Whether replicas elect a leader, and which journal they use."""

    NONE = "none"
    """One daemon, which another may fence by claiming its journal."""
    SHARED = "shared"
    """Two replicas with one journal."""
    OWN = "own"
    """Two replicas, each with its own journal."""


class Mix(msgspec.Struct, frozen=True):
    """The fault rates of a class."""

    api: ApiFaults = ApiFaults()
    watch: WatchFaults = WatchFaults()
    journal: JournalFaults = JournalFaults()
    processes: ProcessFaults = ProcessFaults()
    plugins: PluginFaults = PluginFaults()
    workload: Workload = Workload()
    election: Election = Election.NONE
    group_cycle: float = 0.0
    """Share of configurations in which gangs are scheduled as a whole."""


_API = ApiFaults(
    unreachable=0.02,
    lost=0.03,
    no_response=0.06,
    delayed=0.02,
    throttled=0.03,
    failed=0.04,
    failed_but_executed=0.04,
    executed_later=0.06,
    slow=0.05,
    outages_per_hour=50,
)
_SOME_API = ApiFaults(no_response=0.03, failed=0.02, failed_but_executed=0.02, slow=0.03)
_WATCH = WatchFaults(
    late=0.3,
    broken=0.06,
    silent=0.01,
    ended=0.04,
    expired=0.03,
    repeated=0.05,
    invalid=0.01,
    split=0.1,
)
_SOME_WATCH = WatchFaults(late=0.2, broken=0.02)
_JOURNAL = JournalFaults(
    slow=0.1,
    hanging=0.003,
    full=0.03,
    busy=0.03,
    failed=0.03,
    failed_but_stored=0.06,
    outages_per_hour=50,
    claim=0.1,
    checkpoint=0.3,
)
_SOME_JOURNAL = JournalFaults(slow=0.05, failed_but_stored=0.02)
_CRASHES = ProcessFaults(crashes_per_hour=250, stops_per_hour=50)
_PLUGINS = PluginFaults(enabled=True, raising=0.05, hanging=0.02, slow=0.1, invalid=0.03)

_GROUP_CHANGES = Mix(
    election=Election.SHARED,
    # A leader is lost between a decision and its bindings.
    processes=ProcessFaults(freezes_per_hour=100, crashes_per_hour=150, stops_per_hour=25),
    workload=Workload(
        mean_gap_s=2.0, gangs=0.7, group_changes=10, new_app=10, foreign=5, urgent=0.4, ending=0.1
    ),
    api=_SOME_API,
    watch=_SOME_WATCH,
)

CLASSES: dict[str, Mix] = {
    "calm": Mix(),
    "crash": Mix(
        processes=_CRASHES,
        api=_SOME_API,
        journal=_SOME_JOURNAL,
        watch=_SOME_WATCH,
        # Victims end slowly, so that nominations and evictions outlive a daemon.
        workload=Workload(mean_gap_s=2.0, ending=0.05, urgent=0.5, node_added=0),
    ),
    "journal": Mix(
        journal=_JOURNAL, watch=_SOME_WATCH, processes=ProcessFaults(crashes_per_hour=75)
    ),
    "watch": Mix(watch=_WATCH, processes=ProcessFaults(crashes_per_hour=25)),
    "api": Mix(api=_API, watch=_SOME_WATCH, processes=ProcessFaults(crashes_per_hour=25)),
    "leader": Mix(
        processes=ProcessFaults(
            fencings_per_hour=200, freezes_per_hour=100, crashes_per_hour=50, stops_per_hour=25
        ),
        api=_SOME_API,
        watch=_SOME_WATCH,
        journal=_SOME_JOURNAL,
    ),
    "lease": Mix(
        election=Election.SHARED,
        processes=ProcessFaults(
            freezes_per_hour=100, crashes_per_hour=75, stops_per_hour=50, jumps_per_hour=50
        ),
        api=ApiFaults(no_response=0.03, failed=0.02, slow=0.03, outages_per_hour=30),
        watch=_SOME_WATCH,
        journal=_SOME_JOURNAL,
    ),
    "journals": Mix(
        election=Election.OWN,
        processes=ProcessFaults(
            freezes_per_hour=100, crashes_per_hour=75, stops_per_hour=50, jumps_per_hour=50
        ),
        api=ApiFaults(no_response=0.03, failed=0.02, slow=0.03, outages_per_hour=30),
    ),
    "clock": Mix(
        processes=ProcessFaults(jumps_per_hour=300, crashes_per_hour=75, freezes_per_hour=75),
        watch=_SOME_WATCH,
    ),
    "plugins": Mix(plugins=_PLUGINS, api=_SOME_API, processes=ProcessFaults(crashes_per_hour=50)),
    "churn": Mix(
        workload=Workload(
            mean_gap_s=2.0,
            node_flap=5,
            cordon=3,
            node_lost=5,
            node_added=3,
            mass_deletion=2,
            delete_pod=12,
            foreign=3,
        ),
        watch=_SOME_WATCH,
        processes=ProcessFaults(crashes_per_hour=50),
        api=_SOME_API,
    ),
    "reload": Mix(
        processes=ProcessFaults(reloads_per_hour=250, crashes_per_hour=75, stops_per_hour=25),
        watch=_SOME_WATCH,
        api=_SOME_API,
        journal=_SOME_JOURNAL,
    ),
    "gangs": Mix(
        workload=Workload(gangs=0.6),
        processes=ProcessFaults(crashes_per_hour=100, stops_per_hour=25),
        api=_SOME_API,
        watch=_SOME_WATCH,
    ),
    "upgrade": Mix(
        # Group cycles are drawn: most seeds have them.
        group_cycle=0.7,
        workload=Workload(
            gangs=0.7, new_app=10, drop_app=5, group_changes=8, foreign=3, urgent=0.4, trees=0.6
        ),
        processes=ProcessFaults(crashes_per_hour=50),
        api=ApiFaults(no_response=0.03, failed=0.02, slow=0.03, upgrades_per_hour=250),
        watch=_SOME_WATCH,
    ),
    "members": _GROUP_CHANGES,
    "groups": msgspec.structs.replace(_GROUP_CHANGES, group_cycle=1.0),
    "trees": msgspec.structs.replace(
        _GROUP_CHANGES,
        group_cycle=1.0,
        workload=msgspec.structs.replace(_GROUP_CHANGES.workload, trees=0.8),
    ),
    "sessions": Mix(
        workload=Workload(sessions=0.6, gangs=0.4),
        processes=ProcessFaults(crashes_per_hour=75),
        api=_SOME_API,
        watch=_SOME_WATCH,
    ),
    "claims": Mix(
        workload=Workload(mean_gap_s=2.0, claims=0.7, devices=8, new_app=10),
        processes=ProcessFaults(crashes_per_hour=150, stops_per_hour=25),
        api=_API,
        watch=_SOME_WATCH,
        journal=_SOME_JOURNAL,
    ),
    "allocators": Mix(
        election=Election.OWN,
        workload=Workload(mean_gap_s=2.0, claims=0.7, devices=6, new_app=10),
        processes=ProcessFaults(freezes_per_hour=100, crashes_per_hour=75, stops_per_hour=50),
        api=ApiFaults(no_response=0.05, failed_but_executed=0.03, slow=0.03, outages_per_hour=30),
        watch=_SOME_WATCH,
    ),
    "lost": Mix(
        watch=WatchFaults(late=0.2, broken=0.02, lost=0.25),
        processes=ProcessFaults(crashes_per_hour=25),
        api=_SOME_API,
    ),
    "storm": Mix(
        api=_API,
        watch=_WATCH,
        journal=_JOURNAL,
        processes=ProcessFaults(
            crashes_per_hour=100,
            stops_per_hour=25,
            freezes_per_hour=50,
            fencings_per_hour=50,
            jumps_per_hour=75,
            reloads_per_hour=25,
        ),
        plugins=_PLUGINS,
        workload=Workload(
            gangs=0.2, mass_deletion=1, node_flap=2, node_lost=2, claims=0.2, devices=2
        ),
    ),
}
"""By name. The seed determines its class unless one is given."""


def class_of(seed: int) -> str:
    names = tuple(CLASSES)
    return names[seed % len(names)]
