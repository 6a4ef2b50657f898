"""What kube-scheduler 1.36 has, for docs/reference/compatibility.md."""

from __future__ import annotations

from typing import Final, NamedTuple


class UpstreamPlugin(NamedTuple):
    """A default plugin: the fields of its extension points and of its arguments."""

    name: str
    points: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    weight: int = 0
    """Of its Score; 0 for a plugin without."""


_FILTER: Final = ("preFilter", "filter")
_SCORE: Final = ("preScore", "score")

PLUGINS: Final = (
    UpstreamPlugin("SchedulingGates", ("preEnqueue",)),
    UpstreamPlugin("PrioritySort", ("queueSort",)),
    UpstreamPlugin("NodeUnschedulable", ("filter",)),
    UpstreamPlugin("NodeName", ("filter",)),
    UpstreamPlugin("TaintToleration", ("filter", *_SCORE), weight=3),
    UpstreamPlugin("NodeAffinity", (*_FILTER, *_SCORE), ("addedAffinity",), 2),
    UpstreamPlugin("NodePorts", _FILTER),
    UpstreamPlugin(
        "NodeResourcesFit",
        (*_FILTER, *_SCORE),
        ("ignoredResources", "ignoredResourceGroups", "scoringStrategy"),
        1,
    ),
    UpstreamPlugin("VolumeRestrictions", _FILTER),
    UpstreamPlugin("NodeVolumeLimits", _FILTER),
    UpstreamPlugin(
        "VolumeBinding",
        (*_FILTER, *_SCORE, "reserve", "preBind"),
        ("bindTimeoutSeconds", "shape"),
    ),
    UpstreamPlugin("VolumeZone", _FILTER),
    UpstreamPlugin(
        "PodTopologySpread", (*_FILTER, *_SCORE), ("defaultConstraints", "defaultingType"), 2
    ),
    UpstreamPlugin(
        "InterPodAffinity",
        (*_FILTER, *_SCORE),
        ("hardPodAffinityWeight", "ignorePreferredTermsOfExistingPods"),
        2,
    ),
    UpstreamPlugin(
        "DynamicResources",
        ("preEnqueue", *_FILTER, "postFilter", "score", "reserve", "preBind"),
        ("filterTimeout", "bindingTimeout"),
        2,
    ),
    UpstreamPlugin(
        "DefaultPreemption",
        ("preEnqueue", "postFilter"),
        ("minCandidateNodesPercentage", "minCandidateNodesAbsolute"),
    ),
    UpstreamPlugin("NodeResourcesBalancedAllocation", _SCORE, ("resources",), 1),
    UpstreamPlugin("ImageLocality", ("score",), weight=1),
    UpstreamPlugin("DefaultBinder", ("bind",)),
    UpstreamPlugin("NodeDeclaredFeatures", _FILTER),
)
"""In the order of the default profile."""

EXTENSION_POINTS: Final = (
    "preEnqueue",
    "queueSort",
    "preFilter",
    "filter",
    "postFilter",
    "preScore",
    "score",
    "reserve",
    "permit",
    "preBind",
    "bind",
    "postBind",
    "multiPoint",
    "placementGenerate",
    "placementScore",
)
"""The fields of ``plugins`` in a profile. The last two need alpha gates."""

FIELDS: Final = (
    "parallelism",
    "leaderElection",
    "clientConnection",
    "enableProfiling",
    "enableContentionProfiling",
    "percentageOfNodesToScore",
    "podInitialBackoffSeconds",
    "podMaxBackoffSeconds",
    "profiles",
    "extenders",
    "delayCacheUntilActive",
)
"""Of KubeSchedulerConfiguration."""

RESOURCES: Final = (
    "v1 namespaces",
    "v1 nodes",
    "v1 persistentvolumeclaims",
    "v1 persistentvolumes",
    "v1 pods",
    "v1 replicationcontrollers",
    "v1 services",
    "apps/v1 replicasets",
    "apps/v1 statefulsets",
    "policy/v1 poddisruptionbudgets",
    "resource.k8s.io/v1 deviceclasses",
    "resource.k8s.io/v1 resourceclaims",
    "resource.k8s.io/v1 resourceslices",
    "resource.k8s.io/v1beta2 devicetaintrules",
    "scheduling.k8s.io/v1alpha2 podgroups",
    "storage.k8s.io/v1 csidrivers",
    "storage.k8s.io/v1 csinodes",
    "storage.k8s.io/v1 csistoragecapacities",
    "storage.k8s.io/v1 storageclasses",
    "storage.k8s.io/v1 volumeattachments",
)
"""That it lists and watches, some only with a gate."""
