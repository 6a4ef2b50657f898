"""What the chart renders: objects that an API server takes, that fit together and to the daemon."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from pathlib import Path

import helm_python as helm
import pytest
import yaml

from asched.cli.config import CRD_GROUPS, crd_manifest
from asched.cli.options import JOURNAL_ENV
from asched.config.file import load
from asched.config.registry import PluginRegistry
from asched.daemon.daemon import DRAIN_S, EVENT_FLUSH_S
from tests.docs.command_lines import parsed
from tests.helm.chart import (
    CHART,
    CONF,
    FULL_NAME,
    NAMESPACE,
    POSTGRES,
    ROOT,
    VALUE_SETS,
    Values,
    config_of,
    container,
    only,
    rendered,
    templates,
    workload,
)
from tests.helm.schema import faults

each_value_set = pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
_CLUSTER_WIDE = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
_INFO = 1


@each_value_set
def test_helm_lint_passes(values: Values) -> None:
    report = helm.lint(CHART, values, strict=True, namespace=NAMESPACE)
    assert report["total_charts_linted"] == 1
    assert not report["errors"]
    assert [m for m in report["messages"] if m["severity"] > _INFO] == []


@each_value_set
def test_objects_are_valid_for_api_server(values: Values) -> None:
    objects = rendered(values)
    assert [fault for each in objects for fault in faults(each)] == []
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len({*names}) == len(names)
    for each in objects:
        place = None if each["kind"] in _CLUSTER_WIDE else NAMESPACE
        assert each["metadata"].get("namespace") == place


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("metadata", "label"), {}, "unknown field"),
        (("spec", "replicas"), "1", "expected int"),
        (("spec", "replicas"), True, "expected int"),
        (("spec", "selector"), None, "null"),
        (("spec", "template", "spec", "containers"), {}, "expected a list"),
        (("spec", "template", "spec", "securityContext", "runAsNonroot"), True, "unknown field"),
        (("spec", "template", "metadata", "annotations", "a"), 1, "expected str"),
    ],
)
def test_schema_rejects_invalid_objects(path: tuple[str, ...], value: object, message: str) -> None:
    found = copy.deepcopy(workload(rendered({})))
    place = found
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    assert message in " ".join(faults(found))
    del found["spec"]["template"]
    assert "must not be `None`" in " ".join(faults(found))


@each_value_set
def test_selectors_match_pods(values: Values) -> None:
    objects = rendered(values)
    labels = workload(objects)["spec"]["template"]["metadata"]["labels"].items()
    selectors = {
        "Service": lambda spec: spec["selector"],
        "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
        "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"],
        "StatefulSet": lambda spec: spec["selector"]["matchLabels"],
        "Deployment": lambda spec: spec["selector"]["matchLabels"],
    }
    seen = 0
    for each in objects:
        if each["kind"] in selectors:
            seen += 1
            assert selectors[each["kind"]](each["spec"]).items() <= labels
        if each["kind"] == "ServiceMonitor":
            service = only(objects, "Service")
            wanted = each["spec"]["selector"]["matchLabels"]
            assert wanted.items() <= service["metadata"]["labels"].items()
            assert each["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    assert seen >= 2


# -- the pod ----------------------------------------------------------------------------------


@each_value_set
def test_pod_has_no_privileges_and_writes_nowhere_else(values: Values) -> None:
    objects = rendered(values)
    pod, main = workload(objects)["spec"]["template"]["spec"], container(objects)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert main["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"hostNetwork", "hostPID", "hostIPC"} & pod.keys() == set()
    assert main["resources"]["requests"].keys() == {"cpu", "memory"}
    assert "memory" in main["resources"]["limits"]
    assert "Secret" not in {each["kind"] for each in objects}


@each_value_set
def test_mounted_volumes_exist(values: Values) -> None:
    found = workload(rendered(values))
    pod = found["spec"]["template"]["spec"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    claims = {c["metadata"]["name"] for c in found["spec"].get("volumeClaimTemplates", ())}
    (main,) = pod["containers"]
    assert {mount["name"] for mount in main["volumeMounts"]} == volumes | claims
    ports = {port["name"] for port in main["ports"]}
    for probe, path in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        assert main[probe]["httpGet"]["path"] == path
        assert main[probe]["httpGet"]["port"] in ports


@each_value_set
def test_grace_period_exceeds_drain(values: Values) -> None:
    pod = workload(rendered(values))["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] >= DRAIN_S + EVENT_FLUSH_S + 10


@each_value_set
def test_daemon_understands_its_command_line_and_configuration(
    values: Values, tmp_path: Path
) -> None:
    objects = rendered(values)
    main, data = container(objects), config_of(objects)
    options = parsed(" ".join(["asched", *main["args"]]))
    (mount,) = (m for m in main["volumeMounts"] if m["name"] == "config")
    assert options["config"] == Path(mount["mountPath"]) / "asched.yaml"
    for name, text in data.items():
        (tmp_path / name).write_text(text.replace(mount["mountPath"], str(tmp_path)))
    found = load(tmp_path / "asched.yaml", PluginRegistry.discover())
    assert (found.warnings, found.faults) == ((), ())
    assert found.settings.health.port == main["ports"][0]["containerPort"]
    assert found.settings.health.host in ("0.0.0.0", "::")
    sessions = [session.scheduler_name for session in found.sessions]
    batch = bool(values.get("batch"))
    assert sessions == (["kube-batch"] if batch else [])
    message = templates(values)["NOTES.txt"].splitlines()[0].split(": ")[-1].split()
    served = [profile.scheduler_name for profile in found.profiles] + sessions
    assert [*message] == served


def test_settings_reach_the_daemon(tmp_path: Path) -> None:
    values: Values = {"settings": {"engine": {"seed": 7}}, "journal": {"checkpointEvery": 5}}
    (tmp_path / "asched.yaml").write_text(config_of(rendered(values))["asched.yaml"])
    settings = load(tmp_path / "asched.yaml", PluginRegistry.discover()).settings
    assert (settings.engine.seed, settings.journal.checkpoint_every) == (7, 5)


def test_alerts_and_dashboard_are_unmodified() -> None:
    objects = rendered(VALUE_SETS["everything"])
    rules = yaml.safe_load((CHART / "alerts" / "asched.rules.yaml").read_text())
    assert only(objects, "PrometheusRule")["spec"] == rules
    (shown,) = (o for o in objects if o["metadata"]["name"].endswith("-dashboard"))
    assert shown["metadata"]["labels"]["grafana_dashboard"] == "1"
    dashboard = (CHART / "dashboards" / "asched.json").read_text()
    assert json.loads(shown["data"]["asched.json"]) == json.loads(dashboard)


def test_kube_batch_file_is_unmodified() -> None:
    data = config_of(rendered(VALUE_SETS["batch"]))
    assert data["kube-batch.yaml"] == CONF


@pytest.mark.parametrize(
    ("values", "same"),
    [
        # What a running daemon takes up by itself.
        ({"scheduler": {"profiles": [{"schedulerName": "other"}]}}, True),
        ({"scheduler": {"extenders": [{"urlPrefix": "http://e", "filterVerb": "f"}]}}, True),
        ({"settings": {"log": {"level": "debug"}}}, True),
        ({"batch": {"enabled": True}}, True),
        # What counts at its start.
        ({"settings": {"engine": {"seed": 7}}}, False),
        ({"scheduler": {"clientConnection": {"qps": 5}}}, False),
        ({"journal": {"checkpointEvery": 5}}, False),
        ({"health": {"port": 8080}}, False),
    ],
)
def test_only_restart_settings_replace_pods(values: Values, same: bool) -> None:
    def checksum(values: Values) -> str:
        annotations = workload(rendered(values))["spec"]["template"]["metadata"]["annotations"]
        return str(annotations["checksum/settings"])

    assert checksum({}) == checksum({})
    assert (checksum(values) == checksum({})) is same
    mounted = container(rendered(values))["volumeMounts"][0]
    # A subPath would be a copy of its own, which no change ever reaches.
    assert mounted == {"name": "config", "mountPath": "/etc/asched", "readOnly": True}


# -- the journal ------------------------------------------------------------------------------


def test_sqlite_uses_stateful_set_with_volume() -> None:
    objects = rendered({})
    found = workload(objects)
    assert found["kind"] == "StatefulSet"
    (claim,) = found["spec"]["volumeClaimTemplates"]
    (journal,) = (
        mount
        for mount in container(objects)["volumeMounts"]
        if mount["name"] == claim["metadata"]["name"]
    )
    (variable,) = container(objects)["env"]
    assert variable["name"] == JOURNAL_ENV
    assert Path(variable["value"]).parent == Path(journal["mountPath"])
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert found["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Retain"
    assert found["spec"]["serviceName"] == only(objects, "Service")["metadata"]["name"]


def test_postgresql_uses_deployment_with_secret() -> None:
    objects = rendered(POSTGRES)
    found = workload(objects)
    assert found["kind"] == "Deployment"
    assert found["spec"]["strategy"] == {"type": "Recreate"}
    assert container(objects)["env"] == [
        {
            "name": JOURNAL_ENV,
            "valueFrom": {"secretKeyRef": {"name": "asched-journal", "key": "url"}},
        }
    ]


@pytest.mark.parametrize(
    ("values", "anchors"),
    [("signed", "$HOSTNAME.heads"), ("signed-postgres", "shared.heads")],
)
def test_signing_key_is_mounted_from_secret(values: str, anchors: str, tmp_path: Path) -> None:
    objects = rendered(VALUE_SETS[values])
    (tmp_path / "asched.yaml").write_text(config_of(objects)["asched.yaml"])
    journal = load(tmp_path / "asched.yaml", PluginRegistry.discover()).settings.journal
    mounts = {mount["name"]: mount for mount in container(objects)["volumeMounts"]}
    volumes = {v["name"]: v for v in workload(objects)["spec"]["template"]["spec"]["volumes"]}
    key, secret = Path(journal.signing_key), volumes["signing-key"]["secret"]
    assert key.parent == Path(mounts["signing-key"]["mountPath"])
    assert mounts["signing-key"]["readOnly"] is True
    assert secret["secretName"] == "asched-key"
    (item,) = secret["items"]
    assert (item["path"], secret["defaultMode"]) == (key.name, 0o440)
    anchor = Path(journal.anchor_file)
    assert (anchor.parent, anchor.name) == (Path(mounts["anchors"]["mountPath"]), anchors)
    assert volumes["anchors"]["persistentVolumeClaim"] == {"claimName": "anchors"}
    unsigned = config_of(rendered({}))["asched.yaml"]
    assert "signingKey" not in unsigned


# -- around it --------------------------------------------------------------------------------


def test_optional_objects_are_optional() -> None:
    kinds = {each["kind"] for each in rendered(VALUE_SETS["bare"])}
    assert kinds == {"ConfigMap", "Service", "StatefulSet"}
    assert "mine needs the permissions" in templates(VALUE_SETS["bare"])["NOTES.txt"]
    pod = workload(rendered(VALUE_SETS["bare"]))["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "mine"


def test_disruption_budget_allows_drain() -> None:
    spec = only(rendered({}), "PodDisruptionBudget")["spec"]
    assert spec["maxUnavailable"] == 1
    assert "minAvailable" not in spec


def test_network_policy_allows_required_traffic() -> None:
    spec = only(rendered(VALUE_SETS["everything"]), "NetworkPolicy")["spec"]
    (ingress,) = spec["ingress"]
    assert ingress["from"] == [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]
    ports = [port["port"] for rule in spec["egress"] for port in rule["ports"]]
    assert ports == [53, 53, 6443, 5432, 8888]
    sqlite = only(rendered({}), "NetworkPolicy")["spec"]
    assert 5432 not in [port["port"] for rule in sqlite["egress"] for port in rule["ports"]]


@pytest.mark.parametrize("group", CRD_GROUPS)
def test_crds_equal_those_of_asched_crds(group: str) -> None:
    text = (CHART / "files" / "crds" / f"{group}.yaml").read_text()
    assert text == crd_manifest(group), "copy asched/manifests to the chart"
    found = [e for e in rendered({"crds": [group]}) if e["kind"] == "CustomResourceDefinition"]
    shipped = [*yaml.safe_load_all(text)]
    assert [each["spec"] for each in found] == [each["spec"] for each in shipped]
    for each in found:
        assert each["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_image_reference_uses_tag_or_digest() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert container(rendered({}))["image"] == f"asched:{version}"
    digest = "sha256:" + "0" * 64
    assert container(rendered(VALUE_SETS["everything"]))["image"] == f"example.com/asched@{digest}"
    with helm.Chart.load(CHART) as chart:
        assert chart.metadata["version"] == version


@pytest.mark.parametrize("values", [{}, POSTGRES], ids=["sqlite", "postgres"])
def test_notes_name_existing_objects(values: Values) -> None:
    objects, notes = rendered(values), templates(values)["NOTES.txt"]
    found = workload(objects)
    commands = re.findall(r"-- (asched .*)$", notes, re.M)
    assert commands == ["asched journal stats"]
    assert parsed(commands[0])["journal"]
    assert f"get {found['kind'].lower()} {FULL_NAME}" in notes
