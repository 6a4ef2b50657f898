"""Activity of the cluster: controllers, kubelets, node failures and users.

These act on the API server directly; only the daemon uses the simulated network.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.errors import StatusError
from asched.apiserver.kubelet import simulated_node
from tests.fault_simulation.apps import GROUPS, URGENT, ZONES, App, drawn_app
from tests.fault_simulation.devices import Devices
from tests.fault_simulation.group_trees import GroupTrees
from tests.fault_simulation.mixes import Workload
from tests.fault_simulation.trace import Trace
from tests.fault_simulation.virtual_time import VirtualLoop

Object = dict[str, Any]

NAMESPACE = "default"
_NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
_MOST_APPS = 7
_MOST_NODES = 5
_MOST_REPLICAS = 6


class Churn:
    """Changes the cluster: :meth:`tick` runs controllers, :meth:`disturb` makes one change."""

    def __init__(
        self,
        loop: VirtualLoop,
        cluster: EmbeddedCluster,
        chance: Random,
        load: Workload,
        trace: Trace,
        *,
        devices: Devices | None,
        shaky: bool,
    ) -> None:
        """``devices``: None in a cluster without. ``shaky``: the faulty plugin fails for some
        pods."""
        self._loop = loop
        self._cluster = cluster
        self._chance = chance
        self._load = load
        self._trace = trace
        self._shaky = shaky
        self.apps: dict[str, App] = {}
        self.foreign_nodes: set[str] = set()
        """Nodes to which other clients bound pods, regardless of capacity."""
        self.foreign_pods: set[str] = set()
        """UIDs of the pods that other clients bound."""
        self.devices = devices
        self.calm = False
        """No new failures; gates, cordons and unready nodes are resolved."""
        self._apps_made = 0
        self._nodes_made = 0
        self._lost_groups: dict[str, float] = {}
        """Apps with a PodGroup to recreate, with the due time."""
        self._trees = GroupTrees(cluster, chance, trace)
        self._lost: list[tuple[float, Object]] = []
        """Nodes to recreate, with their due time."""
        self._unready_until: dict[str, float] = {}
        self._changes: list[tuple[int, Callable[[], None]]] = [
            (load.scale, self._scale),
            (load.new_app, self._new_app),
            (load.drop_app, self._drop_app),
            (load.delete_pod, self._delete_pod),
            (load.relabel, self._relabel),
            (load.node_flap, self._node_flap),
            (load.cordon, self._cordon),
            (load.node_lost, self._node_lost),
            (load.node_added, self._add_node),
            (load.mass_deletion, self._mass_deletion),
            (load.foreign, self._bind_by_other_client),
            (load.gate, self._gate),
            (load.devices, self._disturb_devices),
            (load.group_changes, self._change_group),
        ]

    def begin(self) -> None:
        """Create the initial cluster."""
        self._cluster.create("priorityclasses", {"metadata": {"name": URGENT}, "value": 1000})
        if self.devices is not None:
            self.devices.begin()
        for _ in range(self._chance.randint(1, 4)):
            self._add_node()
        for _ in range(self._load.apps):
            self._new_app()
        self.tick()

    # -- controllers and kubelets ---------------------------------------------------------------

    def tick(self) -> None:
        """Run controllers and kubelets once."""
        now_s = self._loop.time()
        self._recreate_nodes(now_s)
        self._recreate_groups(now_s)
        self._trees.tick()
        nodes = {node["metadata"]["name"] for node in self._cluster.list("nodes")}
        of_app: dict[str, list[Object]] = {name: [] for name in self.apps}
        for pod in self._cluster.list("pods"):
            if self._kubelet(pod, nodes):
                of_app.setdefault(pod["metadata"]["labels"].get("app", ""), []).append(pod)
        for name, pods in of_app.items():
            app = self.apps.get(name)
            if app is not None:
                self._replicate(app, pods)
            elif name:
                for pod in pods:
                    self._delete(pod)
        if self.devices is not None:
            self.devices.tick()

    def _kubelet(self, pod: Object, nodes: set[str]) -> bool:
        """Run the kubelet for a pod. False if the pod was removed."""
        node, metadata = pod["spec"].get("nodeName", ""), pod["metadata"]
        terminating = bool(metadata.get("deletionTimestamp"))
        if (node and node not in nodes) or (
            terminating and self._chance.random() < self._load.ending
        ):
            self._delete(pod, grace_period_s=0)
            return False
        if node and pod["status"].get("phase") == "Pending" and self._chance.random() < 0.5:
            self._patch_status("pods", pod, {"phase": "Running"})
        if self.calm and pod["spec"].get("schedulingGates"):
            self._ungate(pod)
        return True

    def _replicate(self, app: App, pods: list[Object]) -> None:
        taken = {pod["metadata"]["name"] for pod in pods}
        alive = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
        for pod in alive[app.replicas :]:
            self._delete(pod)
        for _ in range(app.replicas - len(alive)):
            name = app.next_name(taken)
            if name is None:
                return
            taken.add(name)
            gated = not self.calm and self._chance.random() < 0.03
            shaky = self._shaky and self._chance.random() < 0.3
            self._cluster.create("pods", app.pod(name, gated=gated, shaky=shaky))

    def _recreate_nodes(self, now_s: float) -> None:
        waiting, self._lost = self._lost, []
        for due_s, node in waiting:
            if now_s >= due_s or self.calm:
                self._trace("churn", f"node {node['metadata']['name']} is back")
                self._cluster.create("nodes", node)
            else:
                self._lost.append((due_s, node))
        for name, until_s in [*self._unready_until.items()]:
            if now_s >= until_s or self.calm:
                del self._unready_until[name]
                self._set_ready(name, ready=True)

    def _recreate_groups(self, now_s: float) -> None:
        for name, due_s in [*self._lost_groups.items()]:
            if now_s >= due_s or self.calm:
                del self._lost_groups[name]
                if (app := self.apps.get(name)) is not None:
                    self._trace("churn", f"PodGroup {name} is back: {app.topology}")
                    self._create_group(app)

    # -- disturbances ---------------------------------------------------------------------------

    def disturb(self) -> None:
        """Make one change, drawn by the weights of the workload."""
        weights = [weight for weight, _ in self._changes]
        _, happen = self._chance.choices(self._changes, weights)[0]
        happen()

    def settle(self) -> None:
        """Stop changes and repair the cluster."""
        self.calm = True
        for node in self._cluster.list("nodes"):
            if node["spec"].get("unschedulable"):
                self._cluster.patch(
                    "nodes", node["metadata"]["name"], {"spec": {"unschedulable": None}}
                )
        for pod in self._cluster.list("pods", labels="shaky=yes"):
            patch = {"metadata": {"labels": {"shaky": None}}}
            self._cluster.patch("pods", pod["metadata"]["name"], patch, namespace=NAMESPACE)
        self._shaky = False
        if self.devices is not None:
            self.devices.settle()

    def drop_everything(self) -> None:
        """Drop all apps and remove their pods."""
        self.apps.clear()
        for pod in self._cluster.list("pods"):
            self._delete(pod, grace_period_s=0)
        self.tick()

    def _disturb_devices(self) -> None:
        if self.devices is not None:
            self.devices.disturb()

    def _new_app(self) -> None:
        if len(self.apps) >= _MOST_APPS:
            self._drop_app()
            return
        self._apps_made += 1
        app = drawn_app(f"app{self._apps_made}", self._chance, self._load)
        self.apps[app.name] = app
        if self.devices is not None and not app.in_sessions:
            self.devices.add_to(app.name, app.spec, self._load.claims)
        self._trace("churn", f"new {app.name} x {app.replicas}, gang of {app.gang}: {app.spec}")
        if app.gang:
            if self._load.trees and self._chance.random() < self._load.trees:
                self._trees.add(app)
            self._create_group(app)

    def _create_group(self, app: App) -> None:
        """In the version that is served. Without CompositePodGroups it has no parent."""
        if not self._trees.served:
            app.parent = ""
        self._cluster.create(GROUPS, app.group(), namespace=NAMESPACE)

    def _drop_app(self) -> None:
        if not self.apps:
            return
        app = self.apps.pop(self._chance.choice([*self.apps]))
        self._trace("churn", f"{app.name} is dropped")
        if (
            app.gang
            and self._lost_groups.pop(app.name, None) is None
            and self._chance.random() < 0.5
        ):
            self._cluster.delete(GROUPS, app.name, namespace=NAMESPACE)

    def _change_group(self) -> None:
        """Another topology, or the group is deleted and created again later."""
        names = [name for name, app in self.apps.items() if app.gang]
        names = [name for name in names if name not in self._lost_groups]
        if not names:
            return
        app = self.apps[self._chance.choice(names)]
        if self._load.trees and self._trees.served and self._chance.random() < 0.5:
            self._change_minimum(app)
            return
        app.draw_topology(self._chance)
        if self._chance.random() < 0.5:
            self._trace("churn", f"PodGroup {app.name} is deleted")
            self._cluster.delete(GROUPS, app.name, namespace=NAMESPACE)
            self._lost_groups[app.name] = self._loop.time() + self._chance.uniform(0.0, 10.0)
            return
        self._trace("churn", f"PodGroup {app.name} gets {app.topology}")
        # A patch merges: levels that are no longer set have to be removed.
        unset = dict.fromkeys(("asched.dev/required-topology", "asched.dev/preferred-topology"))
        patch = {"metadata": {"annotations": {**unset, **app.topology}}}
        self._cluster.patch(GROUPS, app.name, patch, namespace=NAMESPACE)

    def _change_minimum(self, app: App) -> None:
        """Of a tree or of the group; below and above the number of members."""
        if self._chance.random() < 0.4:
            self._trees.change()
            return
        app.gang = self._chance.randint(1, 5)
        self._trace("churn", f"PodGroup {app.name} gets the minimum {app.gang}")
        patch = {"spec": {"schedulingPolicy": {"gang": {"minCount": app.gang}}}}
        self._cluster.patch(GROUPS, app.name, patch, namespace=NAMESPACE)

    def _scale(self) -> None:
        if not self.apps:
            return
        app = self.apps[self._chance.choice([*self.apps])]
        app.replicas = self._chance.randint(app.gang, _MOST_REPLICAS)
        self._trace("churn", f"{app.name} is scaled to {app.replicas}")

    def _delete_pod(self) -> None:
        pods = self._cluster.list("pods")
        if pods:
            pod = self._chance.choice(pods)
            self._trace("churn", f"pod {pod['metadata']['name']} is deleted")
            self._delete(pod)

    def _mass_deletion(self) -> None:
        self._trace("churn", "most pods are deleted")
        for pod in self._cluster.list("pods"):
            if self._chance.random() < 0.8:
                self._delete(pod)

    def _relabel(self) -> None:
        pods = self._cluster.list("pods")
        if pods:
            pod = self._chance.choice(pods)
            patch = {"metadata": {"labels": {"version": str(self._chance.randint(1, 3))}}}
            self._cluster.patch("pods", pod["metadata"]["name"], patch, namespace=NAMESPACE)

    def _gate(self) -> None:
        """Remove the gates of all pods."""
        for pod in self._cluster.list("pods"):
            if pod["spec"].get("schedulingGates"):
                self._ungate(pod)

    def _ungate(self, pod: Object) -> None:
        patch = {"spec": {"schedulingGates": None}}
        self._cluster.patch("pods", pod["metadata"]["name"], patch, namespace=NAMESPACE)

    def _bind_by_other_client(self) -> None:
        """Another client binds a pod."""
        nodes = [node["metadata"]["name"] for node in self._cluster.list("nodes")]
        pods = self._cluster.list("pods", fields="spec.nodeName=")
        # A pod that is bound without its devices never starts, and keeps those promised to it.
        pods = [pod for pod in pods if not pod["spec"].get("resourceClaims")]
        if not nodes or not pods:
            return
        node, pod = self._chance.choice(nodes), self._chance.choice(pods)
        self.foreign_nodes.add(node)
        self.foreign_pods.add(pod["metadata"]["uid"])
        self._trace("churn", f"another client binds {pod['metadata']['name']} to {node}")
        try:
            self._cluster.bind(NAMESPACE, pod["metadata"]["name"], node)
        except StatusError as error:
            self._trace("churn", f"rejected: {error.message}")

    # -- nodes ------------------------------------------------------------------------------------

    def _add_node(self) -> None:
        if self._cluster.count("nodes") >= _MOST_NODES:
            return
        self._nodes_made += 1
        name = f"n{self._nodes_made}"
        cpu = self._chance.choice((2, 4, 4, 6))
        capacity = {"cpu": str(cpu), "memory": f"{4 * cpu}Gi", "pods": "12"}
        labels = {"topology.kubernetes.io/zone": self._chance.choice(ZONES)}
        self._trace("churn", f"node {name} with {cpu} CPUs")
        self._cluster.create("nodes", simulated_node(name, capacity=capacity, labels=labels))

    def _some_node(self) -> Object | None:
        nodes = self._cluster.list("nodes")
        return self._chance.choice(nodes) if nodes else None

    def _node_lost(self) -> None:
        node = self._some_node()
        if node is None:
            return
        name = node["metadata"]["name"]
        self._cluster.delete("nodes", name)
        self._unready_until.pop(name, None)
        again = {
            "metadata": {"name": name, "labels": node["metadata"]["labels"]},
            "spec": {},
            "status": node["status"],
        }
        if self._chance.random() < 0.85:
            due_s = self._loop.time() + self._chance.uniform(0.0, 40.0)
            self._lost.append((due_s, again))
        self._trace("churn", f"node {name} is lost")

    def _node_flap(self) -> None:
        node = self._some_node()
        if node is not None and node["metadata"]["name"] not in self._unready_until:
            name = node["metadata"]["name"]
            self._unready_until[name] = self._loop.time() + self._chance.uniform(1.0, 60.0)
            self._set_ready(name, ready=False)

    def _set_ready(self, name: str, *, ready: bool) -> None:
        self._trace("churn", f"node {name} is {'ready' if ready else 'not ready'}")
        condition = {"type": "Ready", "status": "True" if ready else "False", "reason": "Kubelet"}
        self._cluster.patch(
            "nodes", name, {"status": {"conditions": [condition]}}, subresource="status"
        )
        taints = None if ready else [_NOT_READY]
        self._cluster.patch("nodes", name, {"spec": {"taints": taints}})

    def _cordon(self) -> None:
        node = self._some_node()
        if node is not None:
            on = None if node["spec"].get("unschedulable") else True
            self._trace("churn", f"node {node['metadata']['name']} is cordoned: {on}")
            self._cluster.patch("nodes", node["metadata"]["name"], {"spec": {"unschedulable": on}})

    # -- requests ---------------------------------------------------------------------------------

    def _delete(self, pod: Object, grace_period_s: int | None = None) -> None:
        name = pod["metadata"]["name"]
        self._cluster.delete("pods", name, namespace=NAMESPACE, grace_period_s=grace_period_s)

    def _patch_status(self, resource: str, obj: Object, status: Object) -> None:
        self._cluster.patch(
            resource,
            obj["metadata"]["name"],
            {"status": status},
            namespace=NAMESPACE,
            subresource="status",
        )
