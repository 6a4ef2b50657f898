"""The configurations that simulated daemons run with, and their plugins."""

from __future__ import annotations

from functools import cache
from random import Random

from asched.daemon.config_file import Configuration, parse
from asched.framework.registry import Registry
from tests.simulation.apps import SESSIONS
from tests.simulation.mixes import Mix

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
        args: {{permitWaitingTimeSeconds: {permit}}}
"""
_OWN = """\
---
apiVersion: asched.dev/v1
kind: AschedConfiguration
journal: {{checkpointEvery: {every}}}
engine: {{seed: {seed}, unschedulableFlushInterval: {flush}}}
events: {{enabled: {events}}}
"""
_BATCH = """\
batch:
  - schedulerName: {name}
    period: {period}
"""


def drawn_configuration(chance: Random, mix: Mix, registry: Registry) -> Configuration:
    """What a seed's daemons run with."""
    plugins = ["{name: GangScheduling}"]
    if mix.plugins.enabled:
        plugins.append("{name: Shaky}")
    text = _PROFILE.format(
        backoff=chance.choice((1, 2)),
        plugins=", ".join(plugins),
        sort=chance.choice(("GangSort", "PrioritySort")),
        permit=chance.choice((5, 60)),
    )
    text += _OWN.format(
        every=chance.choice((0, 20, 100, 500)),
        seed=chance.randint(0, 3),
        flush=chance.choice(("5m", "24h")),
        events="true" if chance.random() < 0.2 else "false",
    )
    if mix.workload.sessions:
        text += _BATCH.format(name=SESSIONS, period=chance.choice(("1s", "5s")))
    return _parsed(text, registry)


@cache
def _parsed(text: str, registry: Registry) -> Configuration:
    return parse(text, "simulated", registry)
