"""The recorded configuration of decisions as a configuration file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import yaml

from asched.audit.lookup import AuditError
from asched.config import kube_scheduler as kube
from asched.config import settings
from asched.config.feature_gates import GATES, Support
from asched.framework.feature_gates import DEFAULT_FEATURE_GATES, FeatureGates
from asched.framework.interface import ExtensionPoint
from asched.framework.runtime.profile import PluginWeight, ProfileSpec
from asched.model.quantity import format_duration
from asched.state.cluster import ClusterState
from asched.state.records import QueueSettings


def recorded_configuration(state: ClusterState) -> str:
    """A file with the profiles, the queue and the feature gates of the state.

    Reading the file gives the same profiles. Batch sessions and extenders are left out, which a
    comment says. Raises :class:`AuditError` before a configuration is recorded.
    """
    specs = [profile.spec for profile in state.profiles.values()]
    if not specs and not state.sessions:
        raise AuditError("the journal has no configuration up to that time: nothing was scheduled")
    gates = state.plugin_context.feature_gates
    documents = [*_settings(state.queue.settings, gates)]
    if specs:
        documents.insert(0, _scheduler(specs, state.queue.settings))
    text: str = yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, width=100)
    return "".join(_comments(state)) + text


def _comments(state: ClusterState) -> Iterator[str]:
    sessions = [spec.scheduler_name for spec in state.sessions.specs]
    if sessions:
        # Names are one line: quotes escape line ends.
        yield f"# Not included: the batch sessions {', '.join(map(repr, sessions))}.\n"
    if state.extenders:
        yield "# Not included: extenders. A simulation does not call them.\n"


def _scheduler(specs: Sequence[ProfileSpec], queue: QueueSettings) -> dict[str, Any]:
    document: dict[str, Any] = {"apiVersion": kube.API_VERSION, "kind": kube.KIND}
    defaults = QueueSettings()
    if queue.initial_backoff_s != defaults.initial_backoff_s:
        document["podInitialBackoffSeconds"] = int(queue.initial_backoff_s)
    if queue.max_backoff_s != defaults.max_backoff_s:
        document["podMaxBackoffSeconds"] = int(queue.max_backoff_s)
    document["profiles"] = [_profile(spec) for spec in specs]
    return document


def _profile(spec: ProfileSpec) -> dict[str, Any]:
    profile: dict[str, Any] = {"schedulerName": spec.scheduler_name}
    if spec.percentage_of_nodes_to_score:
        profile["percentageOfNodesToScore"] = spec.percentage_of_nodes_to_score
    points = {
        point.field: {"enabled": [_reference(plugin, point) for plugin in spec.plugins_at(point)]}
        for point in ExtensionPoint
        if spec.plugins_at(point)
    }
    profile["plugins"] = {"multiPoint": {"disabled": [{"name": "*"}]}, **points}
    if spec.arguments:
        configured = [{"name": name, "args": args} for name, args in spec.arguments.items()]
        profile["pluginConfig"] = configured
    return profile


def _reference(plugin: PluginWeight, point: ExtensionPoint) -> dict[str, Any]:
    weighed = point is ExtensionPoint.SCORE and plugin.weight != 1
    return {"name": plugin.name, **({"weight": plugin.weight} if weighed else {})}


def _settings(queue: QueueSettings, gates: FeatureGates) -> Iterator[dict[str, Any]]:
    changed = {
        gate.name: getattr(gates, gate.field)
        for gate in GATES
        if gate.support is Support.DECISIONS
        and getattr(gates, gate.field) != getattr(DEFAULT_FEATURE_GATES, gate.field)
    }
    flush_s, default_s = queue.unschedulable_timeout_s, QueueSettings().unschedulable_timeout_s
    document: dict[str, Any] = {"apiVersion": settings.API_VERSION, "kind": settings.KIND}
    if flush_s != default_s:
        interval = format_duration(timedelta(seconds=flush_s))
        document["engine"] = {"unschedulableFlushInterval": interval}
    if changed:
        document["featureGates"] = changed
    if len(document) > 2:
        yield document
