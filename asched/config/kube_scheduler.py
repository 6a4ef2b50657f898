"""KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1): its shape, defaults and validation.

Files, defaults and validation rules are those of kube-scheduler 1.36. What depends on plugins
(merging, arguments) is in :mod:`asched.config.resolve`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import msgspec

from asched.framework.interface import ExtensionPoint
from asched.framework.runtime.extenders import ExtenderSpec, redacted_url
from asched.framework.runtime.strict import Path, Problem, StrictDecoder, quote

API_VERSION: Final = "kubescheduler.config.k8s.io/v1"
KIND: Final = "KubeSchedulerConfiguration"
DEFAULT_SCHEDULER_NAME: Final = "default-scheduler"

Percentage = Annotated[int, msgspec.Meta(ge=0, le=100)]
Weight = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Base class of sections in configuration files."""


class PluginRef(Section, frozen=True):
    """A plugin in a list; ``weight`` is used at Score, where 0 means 1."""

    name: str
    weight: Weight = 0


class PluginSet(Section, frozen=True):
    """Plugins to enable and disable at an extension point; ``*`` disables all defaults."""

    enabled: tuple[PluginRef, ...] = ()
    disabled: tuple[PluginRef, ...] = ()


class Plugins(Section, frozen=True):
    """Plugins by extension point; ``multi_point`` means every point that a plugin implements."""

    pre_enqueue: PluginSet = PluginSet()
    queue_sort: PluginSet = PluginSet()
    pre_filter: PluginSet = PluginSet()
    filter: PluginSet = PluginSet()
    post_filter: PluginSet = PluginSet()
    pre_score: PluginSet = PluginSet()
    score: PluginSet = PluginSet()
    placement_generate: PluginSet = PluginSet()
    placement_score: PluginSet = PluginSet()
    reserve: PluginSet = PluginSet()
    permit: PluginSet = PluginSet()
    pre_bind: PluginSet = PluginSet()
    bind: PluginSet = PluginSet()
    post_bind: PluginSet = PluginSet()
    multi_point: PluginSet = PluginSet()

    def at(self, point: ExtensionPoint) -> PluginSet:
        found: PluginSet = getattr(self, point.name.lower())
        return found


class PluginConfig(Section, frozen=True):
    """The arguments of a plugin, validated when the profile is resolved."""

    name: str
    args: dict[str, Any] = {}


class ProfileConfig(Section, frozen=True):
    """A profile as written. A single profile needs no ``scheduler_name``."""

    scheduler_name: str | None = None
    percentage_of_nodes_to_score: Percentage | None = None
    plugins: Plugins = Plugins()
    plugin_config: tuple[PluginConfig, ...] = ()


class ZeroMeansDefault(Section, frozen=True):
    """A section in which an empty string, 0 or a zero duration means the default, as in Kubernetes'
    component configuration."""

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(self):
            value = getattr(self, field.name)
            if not value and not isinstance(value, bool):
                msgspec.structs.force_setattr(self, field.name, field.default)


class ClientConnection(ZeroMeansDefault, frozen=True):
    kubeconfig: str = ""
    accept_content_types: str = ""
    content_type: str = "application/vnd.kubernetes.protobuf"
    """Accepted and ignored: asched speaks JSON."""
    qps: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Sustained requests per second; 0 sets no limit. kube-scheduler's default of 50 would limit
    the throughput, and API servers protect themselves by priority and fairness."""
    burst: Annotated[int, msgspec.Meta(ge=0)] = 100


class LeaderElection(ZeroMeansDefault, frozen=True):
    """The lease for leader election, and its timing."""

    leader_elect: bool | None = None
    """kube-scheduler's default is true. asched's is false, because most installations have a single
    replica, which would wait for the lease of kube-scheduler."""
    lease_duration: timedelta = timedelta(seconds=15)
    renew_deadline: timedelta = timedelta(seconds=10)
    retry_period: timedelta = timedelta(seconds=2)
    resource_lock: str = "leases"
    resource_name: str = "kube-scheduler"
    resource_namespace: str = "kube-system"


class ExtenderTLS(Section, frozen=True, omit_defaults=True):
    insecure: bool = False
    server_name: str = ""
    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    cert_data: bytes = b""
    key_data: bytes = b""
    ca_data: bytes = b""


class ManagedResource(Section, frozen=True, omit_defaults=True):
    name: str
    ignored_by_scheduler: bool = False


class Extender(Section, frozen=True):
    """An HTTP service for filtering, scoring, preemption or binding."""

    url_prefix: str
    filter_verb: str = ""
    preempt_verb: str = ""
    prioritize_verb: str = ""
    weight: int = 0
    bind_verb: str = ""
    enable_https: bool = msgspec.field(default=False, name="enableHTTPS")
    tls_config: ExtenderTLS | None = None
    http_timeout: timedelta = timedelta(seconds=5)
    node_cache_capable: bool = False
    managed_resources: tuple[ManagedResource, ...] = ()
    ignorable: bool = False

    @property
    def spec(self) -> ExtenderSpec:
        """The form that decisions use."""
        return ExtenderSpec(
            name=redacted_url(self.url_prefix),
            filter_verb=self.filter_verb,
            prioritize_verb=self.prioritize_verb,
            preempt_verb=self.preempt_verb,
            bind_verb=self.bind_verb,
            weight=self.weight,
            managed_resources=tuple(resource.name for resource in self.managed_resources),
            ignorable=self.ignorable,
        )


def in_call_order(extenders: Iterable[Extender]) -> tuple[Extender, ...]:
    """kube-scheduler's order: ignorable extenders last."""
    return tuple(sorted(extenders, key=lambda extender: extender.ignorable))


class KubeSchedulerConfiguration(Section, frozen=True):
    api_version: str = API_VERSION
    kind: str = KIND
    parallelism: int = 16
    """Accepted for compatibility: plugins process all nodes at once, without workers."""
    leader_election: LeaderElection = LeaderElection()
    client_connection: ClientConnection = ClientConnection()
    enable_profiling: bool = True
    enable_contention_profiling: bool = True
    percentage_of_nodes_to_score: Percentage = 0
    """0 means all nodes; in kube-scheduler, a share that shrinks with the cluster's size."""
    pod_initial_backoff_seconds: int = 1
    pod_max_backoff_seconds: int = 10
    profiles: tuple[ProfileConfig, ...] = ()
    extenders: tuple[Extender, ...] = ()
    delay_cache_until_active: bool = False

    @property
    def effective_profiles(self) -> tuple[ProfileConfig, ...]:
        """The profiles, with a default profile for none and a default name for a single one."""
        profiles = self.profiles or (ProfileConfig(),)
        if len(profiles) == 1 and profiles[0].scheduler_name is None:
            named = msgspec.structs.replace(profiles[0], scheduler_name=DEFAULT_SCHEDULER_NAME)
            return (named,)
        return profiles


def decode_with_problems(
    document: object,
) -> tuple[KubeSchedulerConfiguration | None, list[Problem]]:
    """Decode a parsed document (from YAML or JSON), with defaults, and list all problems.

    With problems, the configuration is only used to find further ones.
    """
    decoder = StrictDecoder()
    config = decoder.decode(document, KubeSchedulerConfiguration)
    problems = decoder.problems
    if config is not None:
        seen = {problem.path for problem in problems}
        problems += [problem for problem in _problems(config) if problem.path not in seen]
    return config, problems


def _problems(config: KubeSchedulerConfiguration) -> Iterator[Problem]:
    """Rules beyond the types of single values."""
    for field, given, wanted in (
        ("apiVersion", config.api_version, API_VERSION),
        ("kind", config.kind, KIND),
    ):
        if given != wanted:
            yield Problem((field,), f"expected {wanted}, got {quote(given)}")
    if config.parallelism <= 0:
        yield _not_positive("parallelism", config.parallelism)
    initial_s, max_s = config.pod_initial_backoff_seconds, config.pod_max_backoff_seconds
    if initial_s <= 0:
        yield _not_positive("podInitialBackoffSeconds", initial_s)
    if max_s < initial_s:
        yield Problem(
            ("podMaxBackoffSeconds",),
            f"must be at least podInitialBackoffSeconds ({initial_s}), got {max_s}",
        )
    if config.leader_election.leader_elect is not False:
        for problem in leader_election_problems(config.leader_election):
            yield Problem(("leaderElection", *problem.path), problem.message)
    yield from _extender_problems(config.extenders)


def _not_positive(field: str, value: int) -> Problem:
    return Problem((field,), f"must be greater than 0, got {value}")


_RENEW_JITTER: Final = 1.2
"""Maximum factor by which client-go extends the retry period."""


def leader_election_problems(election: LeaderElection) -> Iterator[Problem]:
    """kube-scheduler's rules for an enabled election; paths are relative to the section."""
    for field, duration in (
        ("leaseDuration", election.lease_duration),
        ("renewDeadline", election.renew_deadline),
        ("retryPeriod", election.retry_period),
    ):
        if duration <= timedelta():
            yield Problem((field,), "must be greater than 0")
    if election.lease_duration <= election.renew_deadline:
        yield Problem(("leaseDuration",), "must be greater than renewDeadline")
    if election.renew_deadline <= election.retry_period * _RENEW_JITTER:
        yield Problem(("renewDeadline",), f"must be greater than {_RENEW_JITTER} times retryPeriod")
    if election.resource_lock != "leases":
        got = quote(election.resource_lock)
        yield Problem(("resourceLock",), f"expected leases, got {got}")


_MAX_EXTENDER_WEIGHT: Final = 2**31 - 1
"""The limit for plugins. Scores of 10 stay within 64 bits with it."""


def _is_web_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _extender_problems(extenders: tuple[Extender, ...]) -> Iterator[Problem]:
    managed: set[str] = set()
    for index, extender in enumerate(extenders):
        path: Path = ("extenders", index)
        if not _is_web_url(extender.url_prefix):
            given = quote(extender.url_prefix)
            yield Problem((*path, "urlPrefix"), f"expected an http or https URL, got {given}")
        if extender.weight > _MAX_EXTENDER_WEIGHT:
            got = quote(extender.weight)
            yield Problem((*path, "weight"), f"must be at most {_MAX_EXTENDER_WEIGHT}, got {got}")
        if extender.prioritize_verb and extender.weight <= 0:
            yield Problem((*path, "weight"), "must be greater than 0 with prioritizeVerb")
        for position, resource in enumerate(extender.managed_resources):
            where = (*path, "managedResources", position, "name")
            if resource.name in managed:
                yield Problem(where, f"{quote(resource.name)} is already managed by an extender")
            if "/" not in resource.name or "kubernetes.io/" in resource.name:
                yield Problem(where, f"{quote(resource.name)} is not an extended resource's name")
            managed.add(resource.name)
    binders = [index for index, extender in enumerate(extenders) if extender.bind_verb]
    for index in binders[1:]:
        yield Problem(
            ("extenders", index, "bindVerb"),
            f"only one extender can bind, and extenders[{binders[0]}] does",
        )
