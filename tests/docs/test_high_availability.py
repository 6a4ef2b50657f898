"""docs/high-availability.md: its configurations do what the page says of them."""

from __future__ import annotations

import re

import pytest
import yaml

from asched.config.file import parse
from asched.config.registry import PluginRegistry
from asched.daemon.ha.leadership import election_of
from tests.helm.chart import ROOT, only, rendered

PAGE = (ROOT / "docs" / "high-availability.md").read_text()
BLOCKS: list[str] = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
CONFIGURATIONS = [block for block in BLOCKS if block.startswith("apiVersion")]
VALUES = [block for block in BLOCKS if not block.startswith("apiVersion")]


@pytest.mark.parametrize("text", CONFIGURATIONS, ids=["kube-scheduler's", "own"])
def test_a_configuration_elects_by_the_lease_that_the_page_names(text: str) -> None:
    found = election_of(parse(text, "page", PluginRegistry.discover()))
    assert found is not None
    assert (found.resource_namespace, found.resource_name) == ("kube-system", "asched")
    assert [
        each.total_seconds()
        for each in (found.lease_duration, found.renew_deadline, found.retry_period)
    ] == [15, 10, 2]


def test_without_a_word_there_is_no_election() -> None:
    nothing = parse("", "none", PluginRegistry.discover(), empty_is_defaults=True)
    assert election_of(nothing) is None
    silent = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    assert election_of(parse(silent, "silent", PluginRegistry.discover())) is None
    off = silent + "leaderElection: {leaderElect: false, leaseDuration: 1s}\n"
    assert election_of(parse(off, "off", PluginRegistry.discover())) is None


def test_the_own_document_counts() -> None:
    both = CONFIGURATIONS[0].replace("asched", "other") + "---\n" + CONFIGURATIONS[1]
    found = election_of(parse(both, "both", PluginRegistry.discover()))
    assert found is not None
    assert found.resource_name == "asched"


def test_the_values_make_replicas_and_their_role() -> None:
    (values,) = VALUES
    rules = only(rendered(yaml.safe_load(values)), "Role")["rules"]
    assert [rule["verbs"] for rule in rules] == [["get", "update", "watch"], ["create"]]
