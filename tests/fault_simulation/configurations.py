"""Configurations and plugins of simulated daemons."""

from __future__ import annotations

from functools import cache
from random import Random

from asched.config.file import Configuration, parse
from asched.config.registry import PluginRegistry
from tests.fault_simulation.apps import SESSIONS
from tests.fault_simulation.mixes import Mix
from tests.fault_simulation.plugins import Shaky

_PROFILE = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
podInitialBackoffSeconds: {backoff}
podMaxBackoffSeconds: 10
profiles:
  - schedulerName: default-scheduler
    plugins:
      multiPoint:
        enabled: [{plugins}]
      queueSort:
        disabled: [{{name: "*"}}]
        enabled: [{{name: {sort}}}]
    pluginConfig:
      - name: GangScheduling
        args: {{permitWaitingTimeSeconds: {permit}{groups}}}
"""
_OWN = """\
---
apiVersion: asched.dev/v1
kind: AschedConfiguration
journal: {{checkpointEvery: {every}}}
engine: {{seed: {seed}, unschedulableFlushInterval: 24h}}
events: {{enabled: {events}}}
"""
_COMPARER = "comparer: {enabled: true, interval: 5s, sliceObjects: 3}\n"
_BATCH = """\
batch:
  - schedulerName: {name}
    period: {period}
"""


_WITH_GROUP_CYCLE = ("TopologyPlacementGenerator", "PodGroupPodsCount")
_GROUP_CYCLE = (", groupCycle: true", ", groupCycle: true, groupPreemption: true")
_VARIANTS = 24
_COMPARING = 0.05
"""Share of seeds with a comparer, which must find nothing; with lost events it must find them."""


@cache
def installed() -> PluginRegistry:
    """The installed plugins and the faulty one."""
    return PluginRegistry.discover().including(Shaky)


def drawn_configuration(chance: Random, mix: Mix) -> Configuration:
    """One of a fixed number of variants, which are parsed once.

    The queue is not flushed, so a missed wake-up is visible.
    """
    gangs_optional = not mix.workload.gangs
    return _variant(
        chance.randrange(_VARIANTS),
        gangs=not (gangs_optional and chance.random() < 0.5),
        shaky=mix.plugins.enabled,
        sessions=bool(mix.workload.sessions),
        group_cycle=mix.group_cycle > 0
        and (mix.group_cycle >= 1 or chance.random() < mix.group_cycle),
        compares=mix.watch.lost > 0 or chance.random() < _COMPARING,
    )


@cache
def _variant(
    number: int, *, gangs: bool, shaky: bool, sessions: bool, group_cycle: bool, compares: bool
) -> Configuration:
    chance = Random(number)
    switches = [("GangScheduling", gangs), ("Shaky", shaky)]
    switches += [(name, group_cycle) for name in _WITH_GROUP_CYCLE]
    plugins = [f"{{name: {name}}}" for name, on in switches if on]
    text = _PROFILE.format(
        backoff=chance.choice((1, 2)),
        plugins=", ".join(plugins),
        sort=chance.choice(("GangSort", "PrioritySort")),
        permit=chance.choice((5, 60)),
        groups=_GROUP_CYCLE[number % len(_GROUP_CYCLE)] if group_cycle else "",
    )
    text += _OWN.format(
        every=chance.choice((0, 20, 100, 500)),
        seed=chance.randint(0, 3),
        events="true" if chance.random() < 0.2 else "false",
    )
    if compares:
        text += _COMPARER
    if sessions:
        text += _BATCH.format(name=SESSIONS, period=chance.choice(("1s", "5s")))
    return parse(text, "simulated", installed())
