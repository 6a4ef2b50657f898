"""AschedConfiguration (asched.dev/v1): settings of asched in the configuration file.

All settings have defaults, so the document is optional and holds only what differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from enum import Enum
from typing import Annotated, Final

import msgspec

from asched.config.kube_scheduler import LeaderElection, Section, leader_election_problems
from asched.framework.binding import ExecutionMode
from asched.framework.runtime.profile import BreakerSpec
from asched.framework.sessions import Compatibility


def _require_positive(**durations: timedelta | None) -> None:
    for name, duration in durations.items():
        if duration is not None and duration <= timedelta():
            raise ValueError(f"{name} must be greater than 0")


def _require_distinct(label: str, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f'{label} "{name}" is repeated')


class BreakerSettings(Section, frozen=True):
    """The circuit breaker of a plugin, which opens after repeated failures."""

    failures: Annotated[int, msgspec.Meta(ge=1)] = 5
    """Number of failures within ``window`` that opens the circuit."""
    window: timedelta = timedelta(minutes=1)
    open_for: timedelta = timedelta(seconds=30)
    """How long the plugin is not called then."""

    def __post_init__(self) -> None:
        if self.window <= timedelta() or self.open_for <= timedelta():
            raise ValueError("window and openFor must be greater than 0")

    @property
    def spec(self) -> BreakerSpec:
        return BreakerSpec(
            self.failures, self.window.total_seconds(), self.open_for.total_seconds()
        )


class PluginSettings(Section, frozen=True):
    name: str
    optional: bool = False
    """Schedule without the plugin if it is missing or broken at the start, while its worker does
    not respond, and while its circuit is open."""
    isolation: ExecutionMode | None = None
    """Where Filter and Score run; by default the plugin's own choice."""
    time_limit: timedelta | None = None
    """Limit for a call in a worker, and in PreBind, Bind and PostBind. A longer call in the
    daemon's process is only reported."""
    circuit_breaker: BreakerSettings | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name must not be empty")
        _require_positive(timeLimit=self.time_limit)


class PluginLimits:
    """The settings of all plugins by name; updates apply to later calls."""

    def __init__(self, settings: Iterable[PluginSettings] = ()) -> None:
        self._of: dict[str, PluginSettings] = {}
        self.configure(settings)

    def configure(self, settings: Iterable[PluginSettings]) -> None:
        self._of = {plugin.name: plugin for plugin in settings}

    def limit_s(self, plugin: str) -> float | None:
        """Limit for a call of the plugin; None if it has no setting."""
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
    """A SQLAlchemy URL. Three slashes mean a path relative to the working directory, four an
    absolute one."""
    checkpoint_every: Annotated[int, msgspec.Meta(ge=0)] = 10_000
    """Records between two checkpoints, for quick starts and time travel; 0 disables them."""
    signing_key: str = ""
    """Path of an Ed25519 key that signs the journal (``asched journal keygen``), which may contain
    a variable such as ``$CREDENTIALS_DIRECTORY``. Empty leaves the journal unsigned."""
    anchor_file: str = ""
    """Path of a file on other storage, to which signed heads are appended; empty for none."""
    anchor_interval: timedelta = timedelta(minutes=1)
    """Minimum time between two heads in ``anchorFile``."""

    def __post_init__(self) -> None:
        if self.anchor_interval <= timedelta():
            raise ValueError("anchorInterval must be greater than 0")
        if self.anchor_file and not self.signing_key:
            raise ValueError("anchorFile needs signingKey: only signed heads are anchored")
        if self.url == _JOURNAL_URL:
            return
        # Imported late: most commands open no journal, and the import is slow.
        from asched.journal.errors import JournalUrlError
        from asched.journal.opening import journal_file

        try:
            journal_file(self.url)
        except JournalUrlError as error:
            raise ValueError(f"url: {error}") from None


class HealthSettings(Section, frozen=True):
    address: str = "127.0.0.1:10251"
    """``host:port`` of /livez, /readyz and /metrics; empty disables them. If the default is in use,
    a free port is used and logged."""

    def __post_init__(self) -> None:
        host, colon, port = self.address.rpartition(":")
        if self.address and not (colon and host and port.isdecimal() and int(port) < 65536):
            raise ValueError(f'"{self.address}" is not host:port, such as "127.0.0.1:10251"')

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """0 lets the system choose, or means no address."""
        return int(self.address.rpartition(":")[2] or 0)


class EngineSettings(Section, frozen=True):
    turn_time_slice: timedelta = timedelta(milliseconds=50)
    """How long one turn of the engine decides before it commits."""
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    """Seed of the tie-breaker; the same seed and records give the same decisions."""
    plugin_time_limit: timedelta = timedelta(seconds=1)
    """A plugin that blocks the event loop for longer is reported in the log, in metrics and by
    /readyz. ``plugins`` can override it per plugin."""
    unschedulable_flush_interval: timedelta = timedelta(minutes=5)
    """After this time an unschedulable pod is retried without an event."""

    def __post_init__(self) -> None:
        _require_positive(
            turnTimeSlice=self.turn_time_slice,
            pluginTimeLimit=self.plugin_time_limit,
            unschedulableFlushInterval=self.unschedulable_flush_interval,
        )


class LogSettings(Section, frozen=True):
    format: LogFormat = LogFormat.AUTO
    level: LogLevel = LogLevel.INFO


class EventSettings(Section, frozen=True):
    """Kubernetes Events about pods, as shown by ``kubectl describe``."""

    enabled: bool = True
    queue_limit: Annotated[int, msgspec.Meta(ge=1)] = 10_000
    """Limit for queued Events; above it the oldest are dropped and counted."""


class ComparerSettings(Section, frozen=True):
    """The comparison of the live state with the cluster and with the journal."""

    enabled: bool = False
    """Compare in the background. Needs the memory of a second state."""
    interval: timedelta = timedelta(minutes=10)
    """From the end of a comparison to the start of the next."""
    slice_objects: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100
    """Objects or records that are compared before other tasks run; also the size of a page."""

    def __post_init__(self) -> None:
        _require_positive(interval=self.interval)


class TracingSettings(Section, frozen=True):
    """OpenTelemetry traces, exported according to OpenTelemetry's environment variables."""

    sampling_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """Share of traced attempts; 0 disables tracing and its dependencies."""


class BatchSettings(Section, frozen=True):
    """Batch sessions as in kube-batch, for the pods of one scheduler name."""

    scheduler_name: str = "kube-batch"
    conf: str = ""
    """Path of kube-batch's configuration (actions and tiers), reloaded when it changes; empty means
    kube-batch's default."""
    period: timedelta = timedelta(seconds=1)
    """From the start of one session to the start of the next."""
    default_queue: str = "default"
    """The queue of PodGroups that name none, and of pods without a PodGroup."""
    compatibility: Compatibility = Compatibility.NONE

    def __post_init__(self) -> None:
        if not self.scheduler_name:
            raise ValueError("schedulerName must not be empty")
        _require_positive(period=self.period)


class AschedLeaderElection(LeaderElection, frozen=True):
    """As in a KubeSchedulerConfiguration, with a separate lease by default."""

    leader_elect: bool | None = True
    resource_name: str = "asched"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.leader_elect:
            for problem in leader_election_problems(self):
                raise ValueError(str(problem))


class AschedConfiguration(Section, frozen=True):
    api_version: str = API_VERSION
    kind: str = KIND
    kubeconfig: str = ""
    """Path of a kubeconfig; empty means ``clientConnection.kubeconfig``, ``$KUBECONFIG``, the home
    directory or the cluster that asched runs in."""
    journal: JournalSettings = JournalSettings()
    health: HealthSettings = HealthSettings()
    engine: EngineSettings = EngineSettings()
    log: LogSettings = LogSettings()
    events: EventSettings = EventSettings()
    comparer: ComparerSettings = ComparerSettings()
    tracing: TracingSettings = TracingSettings()
    leader_election: AschedLeaderElection | None = None
    """Overrides that of a KubeSchedulerConfiguration."""
    batch: tuple[BatchSettings, ...] = ()
    """With batch sessions and without a KubeSchedulerConfiguration, no other pods are scheduled."""

    plugins: tuple[PluginSettings, ...] = ()
    feature_gates: dict[str, bool] = msgspec.field(default_factory=dict)
    """Feature gates of kube-scheduler 1.36 with other values than their defaults
    (docs/reference/compatibility.md)."""

    take_over_names: bool = False
    """Serve a scheduler name even while another scheduler serves it, as its Lease shows
    (``kube-system/kube-scheduler`` for ``default-scheduler``)."""

    def __post_init__(self) -> None:
        _require_distinct("plugins:", [plugin.name for plugin in self.plugins])
        _require_distinct("batch: schedulerName", [batch.scheduler_name for batch in self.batch])
