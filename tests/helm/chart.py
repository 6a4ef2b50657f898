"""The chart, rendered by the real Helm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import helm_python as helm
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "asched"
RELEASE, NAMESPACE = "prod", "kube-system"
FULL_NAME = "prod-asched"
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Object = dict[str, Any]
Values = dict[str, Any]

POSTGRES: Values = {"journal": {"postgres": {"secret": {"name": "asched-journal"}}}}
_PAGE = CHART.parents[1] / "docs" / "how-to" / "batch.md"
CONF = _PAGE.read_text().split("```yaml\n")[2].split("```")[0]
"""A configuration of kube-batch: the one that docs/how-to/batch.md shows."""
VALUE_SETS: dict[str, Values] = {
    "defaults": {},
    "postgres": POSTGRES,
    "batch": {
        "batch": {"enabled": True, "conf": CONF, "period": "2s"},
        "crds": ["scheduling.sigs.dev", "scheduling.volcano.sh"],
    },
    "replicas": {"replicas": 2},
    "replicas-postgres": {
        **POSTGRES,
        "replicas": 3,
        "leaderElection": {"leaseDuration": "30s", "renewDeadline": "20s", "resourceName": "turn"},
    },
    "batch-alone": {"scheduler": {"profiles": None}, "batch": {"enabled": True}},
    "gangs": {
        "scheduler": {
            "profiles": [
                {
                    "schedulerName": "gang",
                    "plugins": {"multiPoint": {"enabled": [{"name": "GangScheduling"}]}},
                }
            ]
        }
    },
    "signed": {
        "replicas": 2,
        "journal": {"signing": {"secret": {"name": "asched-key"}, "anchorClaim": "anchors"}},
    },
    "signed-postgres": {
        "journal": {
            **POSTGRES["journal"],
            "signing": {
                "secret": {"name": "asched-key", "key": "key"},
                "anchorClaim": "anchors",
                "anchorInterval": "10s",
            },
        }
    },
    "everything": {
        **POSTGRES,
        "fullnameOverride": "the-scheduler",
        "image": {"repository": "example.com/asched", "digest": "sha256:" + "0" * 64},
        "imagePullSecrets": [{"name": "pull"}],
        "settings": {"engine": {"seed": 7}, "log": {"level": "debug"}},
        "health": {"host": "[::]", "port": 8080},
        "serviceAccount": {"name": "scheduler", "annotations": {"example.com/role": "r"}},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
        "grafanaDashboard": {"enabled": True},
        "networkPolicy": {
            "enabled": True,
            "metricsFrom": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}],
            "apiServerPorts": [6443],
            "extraEgress": [{"ports": [{"port": 8888}]}],
        },
        "podAnnotations": {"example.com/a": "b"},
        "podLabels": {"example.com/c": "d"},
        "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
        "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
            }
        ],
    },
    "bare": {
        "serviceAccount": {"create": False, "name": "mine"},
        "rbac": {"create": False},
        "podDisruptionBudget": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "priorityClassName": "",
        "journal": {"volume": {"storageClassName": "fast", "size": "100Gi"}},
    },
}


def templates(values: Values) -> dict[str, str]:
    """Each template's text by its name. Raises a HelmError for what the chart refuses."""
    with helm.Chart.load(CHART) as chart:
        return {
            name.rpartition("/")[2]: text
            for name, text in chart.render(values, name=RELEASE, namespace=NAMESPACE).items()
        }


def rendered(values: Values) -> list[Object]:
    """All objects that a release with these values has."""
    texts = templates(values)
    del texts["NOTES.txt"]
    return [found for text in texts.values() for found in yaml.load_all(text, _LOADER) if found]


def only(objects: Sequence[Object], kind: str) -> Object:
    """The one object of a kind."""
    (found,) = (each for each in objects if each["kind"] == kind)
    return found


def workload(objects: Sequence[Object]) -> Object:
    """The StatefulSet or the Deployment."""
    (found,) = (each for each in objects if each["kind"] in ("StatefulSet", "Deployment"))
    return found


def container(objects: Sequence[Object]) -> Object:
    """The one container of its pods."""
    (found,) = workload(objects)["spec"]["template"]["spec"]["containers"]
    return dict(found)


def config_of(objects: Sequence[Object]) -> dict[str, str]:
    """The files of the configuration: those that its pods mount."""
    pod = workload(objects)["spec"]["template"]["spec"]
    (name,) = (v["configMap"]["name"] for v in pod["volumes"] if "configMap" in v)
    (found,) = (o for o in objects if (o["kind"], o["metadata"]["name"]) == ("ConfigMap", name))
    return dict(found["data"])


def permissions(objects: Sequence[Object]) -> set[tuple[str, str, str]]:
    """What the ClusterRole allows: group, resource, verb."""
    return {
        (group, resource, verb)
        for rule in only(objects, "ClusterRole")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
