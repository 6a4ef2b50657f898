"""docs/how-to/high-availability.md: the configurations on the page have the described effect."""

from __future__ import annotations

import re

import pytest
import yaml

from asched.config.file import parse
from asched.config.registry import PluginRegistry
from asched.daemon.ha.leadership import election_of
from tests.helm.chart import ROOT, only, rendered

PAGE = (ROOT / "docs" / "how-to" / "high-availability.md").read_text()
BLOCKS: list[str] = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
CONFIGURATIONS = [block for block in BLOCKS if block.startswith("apiVersion")]
VALUES = [block for block in BLOCKS if not block.startswith("apiVersion")]


@pytest.mark.parametrize("text", CONFIGURATIONS, ids=["kube-scheduler's", "own"])
def test_configuration_uses_the_lease_on_the_page(text: str) -> None:
    found = election_of(parse(text, "page", PluginRegistry.discover()))
    assert found is not None
    assert (found.resource_namespace, found.resource_name) == ("kube-system", "asched")
    assert [
        each.total_seconds()
        for each in (found.lease_duration, found.renew_deadline, found.retry_period)
    ] == [15, 10, 2]


def test_no_election_by_default() -> None:
    nothing = parse("", "none", PluginRegistry.discover(), empty_is_defaults=True)
    assert election_of(nothing) is None
    plain = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    assert election_of(parse(plain, "plain", PluginRegistry.discover())) is None
    off = plain + "leaderElection: {leaderElect: false, leaseDuration: 1s}\n"
    assert election_of(parse(off, "off", PluginRegistry.discover())) is None


def test_own_document_takes_precedence() -> None:
    both = CONFIGURATIONS[0].replace("asched", "other") + "---\n" + CONFIGURATIONS[1]
    found = election_of(parse(both, "both", PluginRegistry.discover()))
    assert found is not None
    assert found.resource_name == "asched"


def test_values_create_role_for_replicas() -> None:
    (values,) = VALUES
    rules = only(rendered(yaml.safe_load(values)), "Role")["rules"]
    assert [rule["verbs"] for rule in rules] == [["get", "update", "watch"], ["create"]]
