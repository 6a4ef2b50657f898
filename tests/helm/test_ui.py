"""The browser interface in the chart: a sidecar with SQLite, a Deployment with PostgreSQL."""

from __future__ import annotations

from typing import Any

import helm_python as helm
import pytest

from tests.docs.command_lines import parsed
from tests.helm.chart import (
    CHART,
    FULL_NAME,
    NAMESPACE,
    POSTGRES,
    Object,
    Values,
    rendered,
    templates,
)
from tests.helm.schema import faults
from tests.ui.tenants import UI_SERVER

UI_NAME = f"{FULL_NAME}-ui"
SETS: dict[str, Values] = {
    "sidecar": {"ui": {"enabled": True}},
    "sidecar-tls": {
        "ui": {
            "enabled": True,
            "host": "[::]",
            "port": 9443,
            "tls": {"secret": "ui-tls"},
            "tokenAudiences": ["asched", "https://example.com"],
        },
        "journal": {"signing": {"secret": {"name": "asched-key"}, "anchorClaim": "anchors"}},
    },
    "postgres": {**POSTGRES, "replicas": 2, "ui": {"enabled": True}},
    "postgres-own-role": {
        **POSTGRES,
        "ui": {
            "enabled": True,
            "tls": {"secret": "ui-tls"},
            "postgres": {"secret": {"name": "reader"}},
            "clients": [{"namespaceSelector": {"matchLabels": {"name": "gateway"}}}],
            "stateClaim": "ui-state",
        },
        "nodeSelector": {"a": "b"},
        "tolerations": [{"operator": "Exists"}],
        "imagePullSecrets": [{"name": "pull"}],
    },
    "bare": {
        "ui": {"enabled": True},
        "rbac": {"create": False},
        "serviceAccount": {"create": False, "name": "mine"},
        "networkPolicy": {"enabled": False},
    },
}
each_set = pytest.mark.parametrize("values", SETS.values(), ids=SETS)


def pod_of(objects: list[Object]) -> Object:
    """The pod template with the container ``ui``."""
    (found,) = (
        each["spec"]["template"]
        for each in objects
        if each["kind"] in ("StatefulSet", "Deployment")
        and any(c["name"] == "ui" for c in each["spec"]["template"]["spec"]["containers"])
    )
    return dict(found)


def ui_container(objects: list[Object]) -> Object:
    (found,) = (c for c in pod_of(objects)["spec"]["containers"] if c["name"] == "ui")
    return dict(found)


def named(objects: list[Object], kind: str, name: str = UI_NAME) -> Object:
    (found,) = (o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name))
    return dict(found)


@each_set
def test_chart_renders_valid_objects(values: Values) -> None:
    report = helm.lint(CHART, values, strict=True, namespace=NAMESPACE)
    assert not report["errors"]
    objects = rendered(values)
    assert [fault for each in objects for fault in faults(each)] == []
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len({*names}) == len(names)


def test_nothing_without_ui() -> None:
    assert "ui" not in {name.rpartition("-")[2] for name in _names(rendered({}))}
    assert "browser" not in templates({})["NOTES.txt"]


def _names(objects: list[Object]) -> list[str]:
    return [each["metadata"]["name"] for each in objects]


@each_set
def test_container_runs_command_without_privileges(values: Values) -> None:
    objects = rendered(values)
    pod, container = pod_of(objects)["spec"], ui_container(objects)
    options = parsed(" ".join(["asched", *container["args"]]))
    assert container["args"][0] == "ui"
    assert (
        str(getattr(options["authentication"], "value", options["authentication"])) == "kubernetes"
    )
    assert (options["tls_certificate"] is None) == options["behind_proxy"]
    port = {p["name"]: p["containerPort"] for p in container["ports"]}["ui"]
    assert options["listen"].endswith(f":{port}")
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    scheme = "HTTP" if options["behind_proxy"] else "HTTPS"
    for probe in ("livenessProbe", "readinessProbe"):
        asked = {"path": "/healthz", "port": "ui", "scheme": scheme}
        assert container[probe]["httpGet"] == asked


@each_set
def test_mounts_exist_and_journal_is_read_only(values: Values) -> None:
    objects = rendered(values)
    pod, container = pod_of(objects)["spec"], ui_container(objects)
    (holder,) = (
        each for each in objects if each.get("spec", {}).get("template") == pod_of(objects)
    )
    claims = {c["metadata"]["name"] for c in holder["spec"].get("volumeClaimTemplates", ())}
    known = {volume["name"] for volume in pod["volumes"]} | claims
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert mounts.keys() <= known
    assert {name for name, mount in mounts.items() if not mount.get("readOnly")} == {
        "tmp",
        "ui-state",
    }
    assert ("ui-tls" in mounts) == any("tls" in arg for arg in container["args"])
    (journal,) = container["env"]
    if "postgres" in values.get("journal", {}):
        wanted = values["ui"].get("postgres", POSTGRES["journal"]["postgres"])["secret"]["name"]
        assert journal["valueFrom"]["secretKeyRef"] == {"name": wanted, "key": "url"}
        assert "journal" not in mounts
    else:
        assert mounts["journal"]["mountPath"] == "/var/lib/asched"
        assert journal["value"].startswith("/var/lib/asched/")


@each_set
def test_index_outlives_the_container(values: Values) -> None:
    objects = rendered(values)
    container = ui_container(objects)
    options = parsed(" ".join(["asched", *container["args"]]))
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    for folder in (options["index_dir"], options["results_dir"]):
        assert folder.is_relative_to(mounts["ui-state"])
    (volume,) = (v for v in pod_of(objects)["spec"]["volumes"] if v["name"] == "ui-state")
    claim = values["ui"].get("stateClaim")
    if claim is None:
        assert volume["emptyDir"]["sizeLimit"] == "4Gi"
        return
    assert volume["persistentVolumeClaim"] == {"claimName": claim}
    # A volume of one node: the next pod starts after this one.
    assert named(objects, "Deployment")["spec"]["strategy"] == {"type": "Recreate"}


@each_set
def test_service_reaches_the_pod(values: Values) -> None:
    objects = rendered(values)
    service = named(objects, "Service")
    template = pod_of(objects)
    labels = template["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    (port,) = service["spec"]["ports"]
    assert port["targetPort"] in {p["name"] for p in ui_container(objects)["ports"]}
    for each in objects:
        if each["kind"] != "NetworkPolicy":
            continue
        chosen = each["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
        rules = [r for r in each["spec"]["ingress"] if r["ports"][0]["port"] == "ui"]
        assert bool(rules) == chosen
        for rule in rules:
            assert rule["from"] == values["ui"].get("clients", [{"namespaceSelector": {}}])
    if values.get("networkPolicy", {}).get("enabled", True):
        assert any(each["kind"] == "NetworkPolicy" for each in objects)


def test_pods_of_daemon_and_interface_are_apart() -> None:
    objects = rendered(SETS["postgres"])
    ui_labels = pod_of(objects)["metadata"]["labels"].items()
    daemon = named(objects, "Deployment", FULL_NAME)["spec"]
    assert not daemon["selector"]["matchLabels"].items() <= ui_labels
    for kind in ("Service", "PodDisruptionBudget"):
        selector = named(objects, kind, FULL_NAME)["spec"]["selector"]
        assert not selector.get("matchLabels", selector).items() <= ui_labels
    own = named(objects, "Deployment")["spec"]["selector"]["matchLabels"].items()
    assert not own <= daemon["template"]["metadata"]["labels"].items()


@each_set
def test_account_may_ask_for_reviews_only(values: Values) -> None:
    objects = rendered(values)
    account = pod_of(objects)["spec"]["serviceAccountName"]
    if "rbac" in values:
        assert account == "mine"
        assert "ClusterRole" not in {each["kind"] for each in objects}
        return
    (subject,) = named(objects, "ClusterRoleBinding")["subjects"]
    assert subject["name"] == account
    granted = {
        (group, resource, verb)
        for rule in named(objects, "ClusterRole")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    # The rights with which tests/ui/test_cluster_access.py reviews readers.
    assert granted == _rights_of_tests()
    bound = [
        each["roleRef"]["name"]
        for each in objects
        if each["kind"] == "ClusterRoleBinding" and each["subjects"][0]["name"] == account
    ]
    in_postgres = "postgres" in values.get("journal", {})
    assert bound == ([UI_NAME] if in_postgres else [FULL_NAME, UI_NAME])


def _rights_of_tests() -> set[tuple[str, str, str]]:
    assert UI_SERVER.rules is not None
    return {
        (rule.group, resource, verb)
        for rule in UI_SERVER.rules
        for resource in rule.resources
        for verb in rule.verbs
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"replicas": 2, "ui": {"enabled": True}}, "needs a journal in PostgreSQL"),
        ({"ui": {"enabled": True, "port": 10251}}, "ui.port and health.port are the same"),
    ],
)
def test_templates_reject(values: Values, message: str) -> None:
    with pytest.raises(helm.HelmRenderError, match=message):
        rendered(values)


@pytest.mark.parametrize(
    "ui", [{"port": 0}, {"tls": {"secret": "A B"}}, {"tokenAudiences": [""]}, {"expose": True}]
)
def test_schema_rejects(ui: dict[str, Any]) -> None:
    with pytest.raises(helm.HelmValuesError):
        templates({"ui": ui})


def test_notes_say_how_to_open_it() -> None:
    for values, port in ((SETS["sidecar"], 80), (SETS["sidecar-tls"], 443)):
        notes = templates(values)["NOTES.txt"]
        assert f"port-forward service/{UI_NAME} 8443:{port}" in notes
