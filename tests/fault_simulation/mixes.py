"""Which faults a seed may meet: a mix for each class of seeds.

Every rate is a probability for each occasion unless its name says otherwise; zero switches the fault
off.
"""

from __future__ import annotations

from enum import Enum

import msgspec


class ApiFaults(msgspec.Struct, frozen=True):
    """What requests meet."""

    unreachable: float = 0.0
    """The connection is refused; the request never left."""
    lost: float = 0.0
    """The connection breaks before the server does anything."""
    unanswered: float = 0.0
    """The server does it, and the connection breaks before the answer."""
    belated: float = 0.0
    """The request takes effect after the client gave up."""
    put_off: float = 0.0
    """429 with Retry-After."""
    failing: float = 0.0
    """500, 503 or 504; nothing is done."""
    failing_done: float = 0.0
    """500 or 504, though it was done."""
    overdue: float = 0.0
    """504, and it is done up to a minute later: the API server's handler went on."""
    slow: float = 0.0
    """An answer takes seconds."""
    outages_per_hour: float = 0.0
    going_down: float = 0.2
    """A lost answer is the beginning of an outage."""


class WatchFaults(msgspec.Struct, frozen=True):
    """What watches meet, each time events arrive or a minute is over."""

    late: float = 0.0
    """Events arrive seconds later than those of other resources."""
    broken: float = 0.0
    """The connection breaks with what was under way."""
    silent: float = 0.0
    """Nothing comes any more, and the connection does not break."""
    ended: float = 0.0
    """The server ends the watch."""
    expired: float = 0.0
    """410 within the watch, and everything that was kept is forgotten."""
    repeated: float = 0.0
    """The last event of a chunk comes twice."""
    garbled: float = 0.0
    """A line that is no JSON."""
    torn: float = 0.0
    """A chunk arrives in two pieces."""


class JournalFaults(msgspec.Struct, frozen=True):
    """What appends meet."""

    slow: float = 0.0
    """A commit takes up to some seconds."""
    hanging: float = 0.0
    """A commit takes minutes."""
    full: float = 0.0
    busy: float = 0.0
    failed: float = 0.0
    """An error, nothing stored."""
    unanswered: float = 0.0
    """An error, though it is stored."""
    troubles_per_hour: float = 0.0
    """Times in which every append fails."""
    claim: float = 0.0
    """The claim at the start fails."""
    checkpoint: float = 0.0
    """A checkpoint cannot be written."""


class ProcessFaults(msgspec.Struct, frozen=True):
    crashes_per_hour: float = 0.0
    stops_per_hour: float = 0.0
    """Orderly ones."""
    freezes_per_hour: float = 0.0
    """The process is stopped for a while and then goes on."""
    depositions_per_hour: float = 0.0
    """Another daemon takes the journal while this one runs."""
    jumps_per_hour: float = 0.0
    """Of the wall clock."""
    reloads_per_hour: float = 0.0
    """Other configurations, taken up by who runs."""


class PluginFaults(msgspec.Struct, frozen=True):
    enabled: bool = False
    raising: float = 0.0
    """PreBind raises."""
    hanging: float = 0.0
    """PreBind does not return."""
    slow: float = 0.0
    nonsense: float = 0.0
    """It answers something that is no Status, or cancels itself."""


class Workload(msgspec.Struct, frozen=True):
    """What happens in the cluster by itself. Weights of the things that may happen next."""

    mean_gap_s: float = 3.0
    """Between one such thing and the next."""
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
    """Deleted with what runs there; mostly one of that name comes back."""
    node_added: int = 1
    mass_deletion: int = 0
    foreign: int = 1
    """Somebody else binds a pod."""
    gate: int = 1
    apps: int = 3
    """At the start."""
    gangs: float = 0.0
    """The share of new apps that are gangs."""
    sessions: float = 0.0
    """The share of apps that batch sessions place."""
    ending: float = 0.4
    """The chance that a pod that was told to end does so, each time its kubelet looks."""
    urgent: float = 0.25
    """The share of apps with a high priority."""
    exacting: float = 0.3
    """The share of apps that ask for more than room: affinity, spreading, ports, a zone."""


class Election(Enum):
    """Whether replicas elect a leader, and what they write to."""

    NONE = "none"
    """One daemon, which another may depose by taking its journal."""
    SHARED = "shared"
    """Two replicas with one journal."""
    OWN = "own"
    """Two replicas, each with a journal of its own."""


class Mix(msgspec.Struct, frozen=True):
    """All that may go wrong in a seed of a class."""

    api: ApiFaults = ApiFaults()
    watch: WatchFaults = WatchFaults()
    journal: JournalFaults = JournalFaults()
    processes: ProcessFaults = ProcessFaults()
    plugins: PluginFaults = PluginFaults()
    workload: Workload = Workload()
    election: Election = Election.NONE


_API = ApiFaults(
    unreachable=0.02, lost=0.03, unanswered=0.06, belated=0.02, put_off=0.03, failing=0.04,
    failing_done=0.04, overdue=0.06, slow=0.05, outages_per_hour=50,
)  # fmt: skip
_SOME_API = ApiFaults(unanswered=0.03, failing=0.02, failing_done=0.02, slow=0.03)
_WATCH = WatchFaults(
    late=0.3, broken=0.06, silent=0.01, ended=0.04, expired=0.03, repeated=0.05, garbled=0.01,
    torn=0.1,
)  # fmt: skip
_SOME_WATCH = WatchFaults(late=0.2, broken=0.02)
_JOURNAL = JournalFaults(
    slow=0.1, hanging=0.003, full=0.03, busy=0.03, failed=0.03, unanswered=0.06,
    troubles_per_hour=50, claim=0.1, checkpoint=0.3,
)  # fmt: skip
_SOME_JOURNAL = JournalFaults(slow=0.05, unanswered=0.02)
_CRASHES = ProcessFaults(crashes_per_hour=250, stops_per_hour=50)
_PLUGINS = PluginFaults(enabled=True, raising=0.05, hanging=0.02, slow=0.1, nonsense=0.03)

CLASSES: dict[str, Mix] = {
    "calm": Mix(),
    "crash": Mix(
        processes=_CRASHES,
        api=_SOME_API,
        journal=_SOME_JOURNAL,
        watch=_SOME_WATCH,
        # Room is made slowly, so that nominations and evictions outlive a daemon.
        workload=Workload(mean_gap_s=2.0, ending=0.05, urgent=0.5, node_added=0),
    ),
    "journal": Mix(
        journal=_JOURNAL, watch=_SOME_WATCH, processes=ProcessFaults(crashes_per_hour=75)
    ),
    "watch": Mix(watch=_WATCH, processes=ProcessFaults(crashes_per_hour=25)),
    "api": Mix(api=_API, watch=_SOME_WATCH, processes=ProcessFaults(crashes_per_hour=25)),
    "leader": Mix(
        processes=ProcessFaults(
            depositions_per_hour=200, freezes_per_hour=100, crashes_per_hour=50, stops_per_hour=25
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
        api=ApiFaults(unanswered=0.03, failing=0.02, slow=0.03, outages_per_hour=30),
        watch=_SOME_WATCH,
        journal=_SOME_JOURNAL,
    ),
    "journals": Mix(
        election=Election.OWN,
        processes=ProcessFaults(
            freezes_per_hour=100, crashes_per_hour=75, stops_per_hour=50, jumps_per_hour=50
        ),
        api=ApiFaults(unanswered=0.03, failing=0.02, slow=0.03, outages_per_hour=30),
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
    "sessions": Mix(
        workload=Workload(sessions=0.6, gangs=0.4),
        processes=ProcessFaults(crashes_per_hour=75),
        api=_SOME_API,
        watch=_SOME_WATCH,
    ),
    "storm": Mix(
        api=_API,
        watch=_WATCH,
        journal=_JOURNAL,
        processes=ProcessFaults(
            crashes_per_hour=100,
            stops_per_hour=25,
            freezes_per_hour=50,
            depositions_per_hour=50,
            jumps_per_hour=75,
            reloads_per_hour=25,
        ),
        plugins=_PLUGINS,
        workload=Workload(gangs=0.2, mass_deletion=1, node_flap=2, node_lost=2),
    ),
}
"""By name. A seed's class follows from the seed unless one is asked for."""


def class_of(seed: int) -> str:
    names = tuple(CLASSES)
    return names[seed % len(names)]
