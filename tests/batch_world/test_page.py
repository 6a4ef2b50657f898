"""The examples of docs/how-to/batch.md work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from asched.apiserver.auth import AuthRule, WantedAccess
from asched.batch.registry import SessionRegistry
from asched.config.file import parse
from asched.config.registry import PluginRegistry
from tests.batch_world.jobs import GROUP, POD_GROUPS, status
from tests.batch_world.manifests import install_crds
from tests.daemon.world import world
from tests.permissions import SESSIONS

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "batch.md"


def blocks() -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.S)


def test_actions_and_plugins_of_the_page_exist() -> None:
    registry = SessionRegistry.discover()
    assert {"allocate", "backfill", "preempt", "reclaim"} <= {*registry.action_names}
    conf: dict[str, Any] = yaml.safe_load(blocks()[1])
    named = {plugin["name"] for tier in conf["tiers"] for plugin in tier["plugins"]}
    assert named <= {*registry.plugin_names}


async def test_configuration_and_objects_of_the_page_work(tmp_path: Path) -> None:
    configuration, conf, objects, _ = blocks()
    (tmp_path / "kube-batch.yaml").write_text(conf)
    configuration = configuration.replace("kube-batch.yaml", str(tmp_path / "kube-batch.yaml"))
    found = parse(configuration, "page", PluginRegistry.discover())
    assert found.sessions[0].actions == ("reclaim", "allocate", "backfill", "preempt")
    assert not found.faults
    assert not found.warnings
    async with world(tmp_path, nodes=1) as w:
        install_crds(w.cluster, GROUP)
        w.cluster.listen(POD_GROUPS, lambda change: w.touch())
        for thing in yaml.safe_load_all(objects):
            plural = {"Queue": f"queues.{GROUP}", "PodGroup": POD_GROUPS, "Pod": "pods"}
            w.cluster.create(plural[thing["kind"]], thing)
        async with w.daemon(configuration):
            await w.until(lambda: status(w, "train").get("phase") == "Running")
            assert not w.unbound()


def test_cluster_role_permits_what_sessions_use() -> None:
    rules = [
        AuthRule(frozenset(rule["verbs"]), group, frozenset(rule["resources"]))
        for rule in yaml.safe_load(blocks()[3])["rules"]
        for group in rule["apiGroups"]
    ]
    for group, resource, verb in SESSIONS:
        wanted = WantedAccess(verb, group, resource)
        assert any(rule.allows(wanted) for rule in rules), (resource, verb)
