"""asched's own settings: the document beside KubeSchedulerConfiguration.

Everything has a default, so the document may be left out or hold only what differs.

What an operator says of single plugins, beside KubeSchedulerConfiguration.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from enum import Enum
from typing import Annotated, Final

import msgspec

from asched.config.kube_scheduler import LeaderElection, Section, leader_election_problems
from asched.framework.binding import ExecutionMode
from asched.framework.runtime.profile import BreakerSpec
from asched.framework.sessions import Compatibility


class BreakerSettings(Section, frozen=True):
    """Leave a plugin alone that fails again and again."""

    failures: Annotated[int, msgspec.Meta(ge=1)] = 5
    """So many failures ..."""
    window: timedelta = timedelta(minutes=1)
    """... within this time open the circuit."""
    open_for: timedelta = timedelta(seconds=30)
    """How long the plugin is not asked then."""

    def __post_init__(self) -> None:
        if self.window <= timedelta() or self.open_for <= timedelta():
            raise ValueError("window and openFor must be greater than 0")

    @property
    def spec(self) -> BreakerSpec:
        return BreakerSpec(
            self.failures, self.window.total_seconds(), self.open_for.total_seconds()
        )


class PluginSettings(Section, frozen=True):
    """One plugin, in whichever profiles it is enabled."""

    name: str
    optional: bool = False
    """Pods are scheduled without it where it is missing or broken at the start, where it does not
    answer from its worker, and while its circuit is open."""
    isolation: ExecutionMode | None = None
    """Where it is asked at Filter and Score; by default what the plugin itself says."""
    time_limit: timedelta | None = None
    """How long one call may take: in a worker, and in PreBind, Bind and PostBind. In the daemon's own
    process a longer call is only reported."""
    circuit_breaker: BreakerSettings | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name must not be empty")
        if self.time_limit is not None and self.time_limit <= timedelta():
            raise ValueError("timeLimit must be greater than 0")


class PluginLimits:
    """The settings of all plugins, by name; what is taken up anew counts from the next call on."""

    def __init__(self, settings: Iterable[PluginSettings] = ()) -> None:
        self._of: dict[str, PluginSettings] = {}
        self.configure(settings)

    def configure(self, settings: Iterable[PluginSettings]) -> None:
        self._of = {plugin.name: plugin for plugin in settings}

    def limit_s(self, plugin: str) -> float | None:
        """How long a call of the plugin may take; None where that is not said."""
        settings = self._of.get(plugin)
        if settings is None or settings.time_limit is None:
            return None
        return settings.time_limit.total_seconds()

    def isolation(self, plugin: str) -> ExecutionMode | None:
        settings = self._of.get(plugin)
        return None if settings is None else settings.isolation


API_VERSION: Final = "asched.dev/v1"
KIND: Final = "AschedConfiguration"


class LogFormat(Enum):
    AUTO = "auto"
    """Console on a terminal, JSON elsewhere."""
    CONSOLE = "console"
    JSON = "json"


class LogLevel(Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_JOURNAL_URL: Final = "sqlite+aiosqlite:///asched.db"


class JournalSettings(Section, frozen=True):
    url: str = _JOURNAL_URL
    """Where records go: a SQLAlchemy URL. Three slashes are a path relative to the working
    directory, four an absolute one."""
    checkpoint_every: Annotated[int, msgspec.Meta(ge=0)] = 10_000
    """Records after which the state is kept again, for quick starts and time travel; 0 never keeps
    it."""

    def __post_init__(self) -> None:
        if self.url == _JOURNAL_URL:
            return
        # Here, because what opens journals takes its time to import, and most commands do without.
        from asched.journal.errors import JournalUrlError
        from asched.journal.opening import journal_file

        try:
            journal_file(self.url)
        except JournalUrlError as error:
            raise ValueError(f"url: {error}") from None


class HealthSettings(Section, frozen=True):
    address: str = "127.0.0.1:10251"
    """``host:port`` that serves /livez, /readyz and /metrics; empty serves nothing. Where the default
    is taken, a free port is served instead and the log says which."""

    def __post_init__(self) -> None:
        host, colon, port = self.address.rpartition(":")
        if self.address and not (colon and host and port.isdecimal() and int(port) < 65536):
            raise ValueError(f'"{self.address}" is no host:port, such as "127.0.0.1:10251"')

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """0 lets the system choose, or stands for no address at all."""
        return int(self.address.rpartition(":")[2] or 0)


class EngineSettings(Section, frozen=True):
    turn_time_slice: timedelta = timedelta(milliseconds=50)
    """How long one turn of the engine goes on deciding before it commits what it has."""
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    """Breaks ties between equally good nodes; the same seed and records give the same choice."""
    plugin_time_limit: timedelta = timedelta(seconds=1)
    """A plugin that holds the event loop for longer is named in the log, in metrics and by /readyz.
    ``plugins`` may say otherwise of one."""
    unschedulable_flush_interval: timedelta = timedelta(minutes=5)
    """A pod that no event has woken for this long is tried again anyway."""

    def __post_init__(self) -> None:
        if self.turn_time_slice <= timedelta():
            raise ValueError("turnTimeSlice must be greater than 0")
        if self.plugin_time_limit <= timedelta():
            raise ValueError("pluginTimeLimit must be greater than 0")
        if self.unschedulable_flush_interval <= timedelta():
            raise ValueError("unschedulableFlushInterval must be greater than 0")


class LogSettings(Section, frozen=True):
    format: LogFormat = LogFormat.AUTO
    level: LogLevel = LogLevel.INFO


class EventSettings(Section, frozen=True):
    """Kubernetes Events about pods (``kubectl describe``)."""

    enabled: bool = True
    queue_limit: Annotated[int, msgspec.Meta(ge=1)] = 10_000
    """Events that may wait to be sent; beyond it the oldest are dropped and counted."""


class TracingSettings(Section, frozen=True):
    """OpenTelemetry traces. Where they go is said by OpenTelemetry's environment variables."""

    sampling_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """The share of attempts that is traced; 0 traces none, and needs nothing installed."""


class BatchSettings(Section, frozen=True):
    """Pods of one scheduler name that batch sessions place, as kube-batch does."""

    scheduler_name: str = "kube-batch"
    conf: str = ""
    """Path of kube-batch's own configuration (actions and tiers); empty is kube-batch's default. It
    is read again whenever it changes."""
    period: timedelta = timedelta(seconds=1)
    """From the start of one session to the start of the next."""
    default_queue: str = "default"
    """The queue of PodGroups that name none, and of pods without a PodGroup."""
    compatibility: Compatibility = Compatibility.NONE

    def __post_init__(self) -> None:
        if not self.scheduler_name:
            raise ValueError("schedulerName must not be empty")
        if self.period <= timedelta():
            raise ValueError("period must be greater than 0")


class OwnLeaderElection(LeaderElection, frozen=True):
    """As the section of a KubeSchedulerConfiguration, with a lease of asched's own by default."""

    leader_elect: bool | None = True
    resource_name: str = "asched"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.leader_elect:
            for problem in leader_election_problems(self):
                raise ValueError(str(problem))


class AschedConfiguration(Section, frozen=True):
    """The whole document."""

    api_version: str = API_VERSION
    kind: str = KIND
    kubeconfig: str = ""
    """Path of a kubeconfig; empty leaves it to ``clientConnection.kubeconfig``, ``$KUBECONFIG``,
    the home directory or the cluster that asched runs in."""
    journal: JournalSettings = JournalSettings()
    health: HealthSettings = HealthSettings()
    engine: EngineSettings = EngineSettings()
    log: LogSettings = LogSettings()
    events: EventSettings = EventSettings()
    tracing: TracingSettings = TracingSettings()
    leader_election: OwnLeaderElection | None = None
    """Counts instead of that of a KubeSchedulerConfiguration, where there is any."""
    batch: tuple[BatchSettings, ...] = ()
    """What batch sessions schedule. Where there is any, and the file has no KubeSchedulerConfiguration,
    no pod is scheduled otherwise."""

    plugins: tuple[PluginSettings, ...] = ()
    """What is particular about single plugins."""

    def __post_init__(self) -> None:
        plugins = [plugin.name for plugin in self.plugins]
        for name in plugins:
            if plugins.count(name) > 1:
                raise ValueError(f'plugins: "{name}" is given more than once')
        names = [batch.scheduler_name for batch in self.batch]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f'batch: schedulerName "{name}" is given more than once')
