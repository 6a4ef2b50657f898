"""Objects of a hostile tenant: each class as large as kube-apiserver accepts it.

The limits of kube-apiserver are 1.5 MiB for an object in etcd and 3 MiB for a request. A few rules
limit single fields: annotations 256 KiB together, names and label values 253 and 63 characters,
unique pairs of topology key and ``whenUnsatisfiable``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from asched.model.resources import GroupResource, Resource, WatchedResource

ETCD_LIMIT_BYTES = 3 * 1024 * 1024 // 2

Json = dict[str, Any]

SMALL = 2000
"""Bytes of the small objects of the same classes, below every limit."""


class HostileClass(NamedTuple):
    """One way to make an object expensive."""

    name: str
    resource: WatchedResource
    make: Callable[[int, int], Json]
    """The object of that number with about that many bytes of JSON."""

    def raw(self, number: int, size_bytes: int = ETCD_LIMIT_BYTES) -> bytes:
        made = msgspec.json.encode(self.make(number, size_bytes))
        assert len(made) <= ETCD_LIMIT_BYTES, (self.name, len(made))
        return made


def fill(size_bytes: int, items: Iterable[Any]) -> list[Any]:
    """As many items as fit."""
    held: list[Any] = []
    left = size_bytes - 1000
    for item in items:
        left -= len(msgspec.json.encode(item)) + 1
        if left < 0:
            break
        held.append(item)
    return held


def fill_dict(size_bytes: int, items: Iterable[tuple[str, Any]]) -> Json:
    # A pair takes as many bytes in a list as in an object, less one.
    return dict(fill(size_bytes, items))


def count() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


def metadata(name: str, number: int, **more: Any) -> Json:
    return {"name": f"{name}-{number}", "namespace": "evil", "uid": f"u-{name}-{number}", **more}


def a_pod(name: str, number: int, *, meta: Json | None = None, **spec: Any) -> Json:
    """An ordinary pod of the hostile namespace, with other fields."""
    container = {
        "name": "c",
        "image": "i",
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
    }
    defaults = {"schedulerName": "default-scheduler", "containers": [container]}
    return {"metadata": metadata(name, number, **(meta or {})), "spec": {**defaults, **spec}}


def term(number: int, index: int) -> Json:
    """A term with a selector of its own that matches every pod of the cluster."""
    expression = {"key": "app", "operator": "NotIn", "values": [f"x{number}-{index}"]}
    return {
        "labelSelector": {"matchExpressions": [expression]},
        "namespaceSelector": {},
        "topologyKey": ("kubernetes.io/hostname", "topology.kubernetes.io/zone")[index % 2],
    }


def _preferred(kind: str) -> Callable[[int, int], Json]:
    def make(number: int, size_bytes: int) -> Json:
        items = ({"weight": 1, "podAffinityTerm": term(number, i)} for i in count())
        rule = {"preferredDuringSchedulingIgnoredDuringExecution": fill(size_bytes, items)}
        return a_pod(f"preferred-{kind.lower()}", number, affinity={kind: rule})

    return make


def _required(number: int, size_bytes: int) -> Json:
    items = (
        {"labelSelector": {"matchLabels": {"app": f"q{number}-{i}"}}, "topologyKey": f"k{i % 7}"}
        for i in count()
    )
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": fill(size_bytes, items)}
    return a_pod("required-terms", number, affinity={"podAntiAffinity": rule})


def terms_at_limit(number: int, size_bytes: int) -> Json:
    """As many terms as a pod may have."""
    items = ({"weight": 1, "podAffinityTerm": term(number, i)} for i in range(128))
    rule = {"preferredDuringSchedulingIgnoredDuringExecution": fill(size_bytes, items)}
    return a_pod("terms-at-limit", number, affinity={"podAntiAffinity": rule})


def _spread(number: int, size_bytes: int) -> Json:
    items = (
        {
            "maxSkew": 1,
            "topologyKey": f"key{i}",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"app": f"q{number}-{i}"}},
        }
        for i in count()
    )
    return a_pod("spread", number, topologySpreadConstraints=fill(size_bytes, items))


def _requests(amount: str) -> Callable[[int, int], Json]:
    def make(number: int, size_bytes: int) -> Json:
        names = fill_dict(size_bytes, ((f"x{number}.io/r{i}", amount) for i in count()))
        container = {"name": "c", "resources": {"requests": {"cpu": "1", **names}}}
        return a_pod(f"requests-of-{amount}", number, containers=[container])

    return make


def waiting_terms(number: int, size_bytes: int) -> Json:
    """Waits for pods of its own that never come, with as many terms as are free."""
    wanted = {
        "labelSelector": {"matchLabels": {"app": f"w{number}"}},
        "namespaceSelector": {},
        "topologyKey": "kubernetes.io/hostname",
    }
    avoided = (
        {**wanted, "labelSelector": {"matchLabels": {"a": f"{number}-{i}"}}} for i in range(7)
    )
    rules = {
        "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [wanted]},
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": fill(size_bytes, avoided)
        },
    }
    return a_pod("waiting-terms", number, affinity=rules)


def preemptor(number: int, size_bytes: int) -> Json:
    """Fits on no node, and no preemption helps."""
    terms = [{**term(number, i), "namespaceSelector": {}} for i in range(8)]
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": fill(size_bytes, terms)}
    return a_pod("preemptor", number, affinity={"podAntiAffinity": rule}, priority=10)


def plain_preemptor(number: int, size_bytes: int) -> Json:
    """Needs most of a node, in a form of its own."""
    requests = {"cpu": "63800m", "memory": f"{100_000_000 + number}"}
    container = {"name": "c", "image": f"i{number}", "resources": {"requests": requests}}
    return a_pod("plain-preemptor", number, containers=[container], priority=10)


def names_at_limit(number: int, size_bytes: int) -> Json:
    """As many resource names as a pod may have, each of its own, on a node."""
    names = {f"x{number}.io/r{i}": "1" for i in range(63)}
    container = {"name": "c", "resources": {"requests": {"cpu": "1", **names}}}
    return a_pod("names-at-limit", number, containers=[container], nodeName=f"n{number % 10}")


def _labels(number: int, size_bytes: int) -> Json:
    labels = fill_dict(size_bytes, ((f"l{i:06}.io/key", f"{number:060}") for i in count()))
    return a_pod("labels", number, meta={"labels": labels}, schedulerName="another")


def _tolerations(number: int, size_bytes: int) -> Json:
    items = ({"key": f"t{number}-{i}", "operator": "Exists"} for i in count())
    return a_pod("tolerations", number, tolerations=fill(size_bytes, items))


def _node_selector(number: int, size_bytes: int) -> Json:
    selector = fill_dict(size_bytes, ((f"l{i}", f"v{number}") for i in count()))
    return a_pod("node-selector", number, nodeSelector=selector)


def _node_names(number: int, size_bytes: int) -> Json:
    values = fill(size_bytes, (f"{number}{i}" for i in count()))
    expression = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": values}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": required}
    return a_pod("node-names", number, affinity={"nodeAffinity": rule})


def _preferred_nodes(number: int, size_bytes: int) -> Json:
    items = (
        {"weight": 1, "preference": {"matchExpressions": [{"key": f"k{i}", "operator": "Exists"}]}}
        for i in count()
    )
    rule = {"preferredDuringSchedulingIgnoredDuringExecution": fill(size_bytes, items)}
    return a_pod("preferred-nodes", number, affinity={"nodeAffinity": rule})


def _volumes(number: int, size_bytes: int) -> Json:
    items = ({"name": f"v{i}", "persistentVolumeClaim": {"claimName": f"c{i}"}} for i in count())
    return a_pod("volumes", number, volumes=fill(size_bytes, items))


def _containers(number: int, size_bytes: int) -> Json:
    items = ({"name": f"c{i}", "image": f"image{number}-{i}"} for i in count())
    return a_pod("containers", number, containers=fill(size_bytes, items))


def _ports(number: int, size_bytes: int) -> Json:
    items = ({"containerPort": i % 65535 + 1, "hostPort": i % 65535 + 1} for i in count())
    return a_pod("ports", number, containers=[{"name": "c", "ports": fill(size_bytes, items)}])


def _claim_references(number: int, size_bytes: int) -> Json:
    items = ({"name": f"c{i}", "resourceClaimName": f"claim-{i}"} for i in count())
    return a_pod("claim-references", number, resourceClaims=fill(size_bytes, items))


def _image(number: int, size_bytes: int) -> Json:
    name = "i" * (size_bytes - 1000)
    return a_pod("image", number, containers=[{"name": "c", "image": name}])


def _scheduler_name(number: int, size_bytes: int) -> Json:
    return a_pod("scheduler-name", number, schedulerName="s" * (size_bytes - 1000))


def _group_name(number: int, size_bytes: int) -> Json:
    name = "g" * min(size_bytes - 1000, 250 * 1024)
    annotations = {"scheduling.k8s.io/group-name": name}
    return a_pod("group-name", number, meta={"annotations": annotations})


def _gates(number: int, size_bytes: int) -> Json:
    items = ({"name": f"g{number}.io/{i}"} for i in count())
    return a_pod("gates", number, schedulingGates=fill(size_bytes, items))


def _selector(name: str) -> Callable[[int, int], Json]:
    """An object with a ``LabelSelector``."""

    def make(number: int, size_bytes: int) -> Json:
        values = fill(size_bytes, (f"{number}{i}" for i in count()))
        expression = {"key": "app", "operator": "NotIn", "values": values}
        spec = {"selector": {"matchExpressions": [expression]}}
        return {"metadata": metadata(name, number), "spec": spec}

    return make


def _service(number: int, size_bytes: int) -> Json:
    selector = fill_dict(size_bytes, ((f"l{i}", f"v{number}") for i in count()))
    return {"metadata": metadata("service", number), "spec": {"selector": selector}}


def _pod_group(number: int, size_bytes: int) -> Json:
    least = fill_dict(size_bytes, ((f"x{number}.io/r{i}", "1") for i in count()))
    return {"metadata": metadata("group", number), "spec": {"minMember": 1, "minResources": least}}


# -- devices --------------------------------------------------------------------------------------


def a_device_class() -> Json:
    selectors = [{"cel": {"expression": "device.driver == 'gpu.example'"}}]
    return {"metadata": {"name": "gpu", "uid": "u-gpu"}, "spec": {"selectors": selectors}}


def a_slice(number: int, node: str, devices: int = 8) -> Json:
    """The devices of a node, each with a serial number."""
    found = [
        {
            "name": f"d{i}",
            "attributes": {"serial": {"string": f"{number}-{i}"}, "numa": {"int": i // 4}},
            "capacity": {"memory": {"value": "40Gi"}},
        }
        for i in range(devices)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.example", "nodeName": node, "pool": pool, "devices": found}
    return {"metadata": {"name": f"slice-{number}", "uid": f"u-slice-{number}"}, "spec": spec}


def _exactly(index: int, expressions: Iterable[str], amount: int = 1) -> Json:
    selectors = [{"cel": {"expression": expression}} for expression in expressions]
    exactly = {
        "deviceClassName": "gpu",
        "allocationMode": "ExactCount",
        "count": amount,
        "selectors": selectors,
    }
    return {"name": f"r{index}", "exactly": exactly}


def a_claim(name: str, number: int, expressions: Iterable[str] = ()) -> Json:
    """A claim with one request."""
    return _claim(name, number, [_exactly(0, expressions)])


def _claim(name: str, number: int, requests: list[Json], constraints: Iterable[Json] = ()) -> Json:
    devices = {"requests": requests, "constraints": [*constraints]}
    return {"metadata": metadata(name, number), "spec": {"devices": devices}}


def a_pod_with_claims(name: str, number: int, claims: Iterable[str]) -> Json:
    references = [{"name": f"c{i}", "resourceClaimName": c} for i, c in enumerate(claims)]
    return a_pod(name, number, resourceClaims=references)


def _one_selector(number: int, size_bytes: int) -> Json:
    return a_claim("claim", number, [_SERIAL.format(number, 0)])


def _many_selectors(number: int, size_bytes: int) -> Json:
    requests = [_exactly(i, (_SERIAL.format(number, j) for j in range(32))) for i in range(8)]
    return _claim("claim", number, requests)


def _expensive_selector(number: int, size_bytes: int) -> Json:
    digits = "[0,1,2,3,4,5,6,7,8,9]"
    loops = "".join(f"{digits}.all({name}, " for name in "abcd")
    return a_claim("claim", number, [f"{loops}a + b + c + d >= -{number})))) && {_READS_SERIAL}"])


def _long_selectors(number: int, size_bytes: int) -> Json:
    terms = " || ".join(_SERIAL.format(number, i) for i in range(150))
    return a_claim("claim", number, [f"{terms} || {i} > 0" for i in range(6)])


def _alternatives(number: int, size_bytes: int) -> Json:
    options = [
        {"name": f"s{i}", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
        for i in range(8)
    ]
    requests = [{"name": f"r{i}", "firstAvailable": options} for i in range(32)]
    # Requests for more than a node has, with a number of its own.
    requests[0] = _exactly(0, [_SERIAL.format(number, 0)])
    constraints = [{"matchAttribute": "gpu.example/numa"}] * 32
    return _claim("claim", number, requests, constraints)


def _combinations(number: int, size_bytes: int) -> Json:
    requests = [_exactly(i, [_SERIAL.format(number, i)]) for i in range(8)]
    pair = {"requests": ["r0", "r7"]}
    attribute = "gpu.example/numa"
    constraints = [{**pair, "distinctAttribute": attribute}, {**pair, "matchAttribute": attribute}]
    return _claim("claim", number, requests, constraints)


_READS_SERIAL = "device.attributes['gpu.example'].serial != ''"
_SERIAL = "device.attributes['gpu.example'].serial != 'x{}-{}'"

CLAIM_CLASSES = (
    HostileClass("claims: one selector", Resource.RESOURCE_CLAIMS, _one_selector),
    HostileClass("claims: 256 selectors", Resource.RESOURCE_CLAIMS, _many_selectors),
    HostileClass("claims: expensive CEL", Resource.RESOURCE_CLAIMS, _expensive_selector),
    HostileClass("claims: long CEL", Resource.RESOURCE_CLAIMS, _long_selectors),
    HostileClass("claims: alternatives", Resource.RESOURCE_CLAIMS, _alternatives),
    HostileClass("claims: combinations", Resource.RESOURCE_CLAIMS, _combinations),
)
"""Claims within all limits, each of a form of its own; a pod names each one."""

POD_CLASSES = (
    HostileClass("preferred anti-affinity", Resource.PODS, _preferred("podAntiAffinity")),
    HostileClass("preferred affinity", Resource.PODS, _preferred("podAffinity")),
    HostileClass("required anti-affinity", Resource.PODS, _required),
    HostileClass("spread constraints", Resource.PODS, _spread),
    HostileClass("requests of 0", Resource.PODS, _requests("0")),
    HostileClass("requests of 1", Resource.PODS, _requests("1")),
    HostileClass("labels", Resource.PODS, _labels),
    HostileClass("tolerations", Resource.PODS, _tolerations),
    HostileClass("node selector", Resource.PODS, _node_selector),
    HostileClass("node names", Resource.PODS, _node_names),
    HostileClass("preferred nodes", Resource.PODS, _preferred_nodes),
    HostileClass("volumes", Resource.PODS, _volumes),
    HostileClass("containers", Resource.PODS, _containers),
    HostileClass("host ports", Resource.PODS, _ports),
    HostileClass("resource claims", Resource.PODS, _claim_references),
    HostileClass("image name", Resource.PODS, _image),
    HostileClass("scheduler name", Resource.PODS, _scheduler_name),
    HostileClass("group name", Resource.PODS, _group_name),
    HostileClass("scheduling gates", Resource.PODS, _gates),
)
"""Pods above a limit."""

ALLOWED_CLASSES = (
    HostileClass("terms at the limit", Resource.PODS, terms_at_limit),
    HostileClass("resource names at the limit", Resource.PODS, names_at_limit),
    HostileClass("waiting for pods", Resource.PODS, waiting_terms),
    HostileClass("preemptors", Resource.PODS, preemptor),
    HostileClass("preemptors without terms", Resource.PODS, plain_preemptor),
)
"""Pods as expensive as the limits allow."""

OTHER_CLASSES = (
    HostileClass("Service", Resource.SERVICES, _service),
    HostileClass("ReplicationController", Resource.REPLICATION_CONTROLLERS, _service),
    HostileClass("ReplicaSet", Resource.REPLICA_SETS, _selector("replica-set")),
    HostileClass("StatefulSet", Resource.STATEFUL_SETS, _selector("stateful-set")),
    HostileClass("PodDisruptionBudget", Resource.POD_DISRUPTION_BUDGETS, _selector("budget")),
    HostileClass("PersistentVolumeClaim", Resource.PERSISTENT_VOLUME_CLAIMS, _selector("claim")),
    HostileClass("PodGroup", GroupResource.VOLCANO_POD_GROUPS, _pod_group),
)
"""Objects of other kinds that a tenant can create."""
