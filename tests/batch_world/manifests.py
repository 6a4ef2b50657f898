"""The shipped definitions, installed in an embedded cluster."""

from __future__ import annotations

from typing import Any

import yaml

from asched.apiserver.cluster import EmbeddedCluster
from asched.cli.config import CRD_GROUPS, crd_manifest


def install_crds(cluster: EmbeddedCluster, *groups: str) -> None:
    """Serves PodGroups and Queues of these API groups, or of all."""
    for group in groups or CRD_GROUPS:
        for definition in definitions(group):
            cluster.create("customresourcedefinitions", definition)


def definitions(group: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(crd_manifest(group)))
