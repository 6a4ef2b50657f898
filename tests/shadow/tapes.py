"""Small tapes: the changes that a watch shows while another scheduler runs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from asched.config.file import parse
from asched.config.registry import PluginRegistry
from asched.cycle.shadow_report import Report
from asched.daemon.shadow.daemon import records_of
from asched.daemon.shadow.explainer import Window
from asched.daemon.shadow.follower import ShadowFollower
from asched.kube.tape import Tape
from asched.state.records import AnyRecord
from tests.run_size import run_share

Object = dict[str, Any]
STEP_S = 0.001


class TapeWriter:
    """Writes lines a millisecond apart, and keeps each object's state."""

    def __init__(self) -> None:
        self.lines: list[Object] = []
        self.at_s = 0.0
        self._objects: dict[tuple[str, str], Object] = {}

    def line(self, resource: str, kind: str, item: Object) -> None:
        self.at_s += STEP_S
        # The object may change later on; the line is what it was.
        text = json.dumps({"t": self.at_s, "resource": resource, "type": kind, "object": item})
        self.lines.append(json.loads(text))

    def _show(self, resource: str, item: Object) -> None:
        key = (resource, item["metadata"]["name"])
        kind = "MODIFIED" if key in self._objects else "ADDED"
        self._objects[key] = item
        self.line(resource, kind, item)

    # -- nodes --------------------------------------------------------------------------------

    def node(
        self,
        name: str,
        cpu: str,
        *,
        cordoned: bool = False,
        image_bytes: int = 0,
        pool: str = "",
    ) -> None:
        """Create or replace a node. ``image_bytes``: size of the image ``app:v1``; ``pool``: value
        of the label ``pool``."""
        capacity = {"cpu": cpu, "memory": "16Gi", "pods": "110"}
        images = [{"names": ["app:v1"], "sizeBytes": image_bytes}] if image_bytes else []
        self._show(
            "nodes",
            {
                "metadata": {"name": name, "uid": name, "labels": {"pool": pool} if pool else {}},
                "spec": {"unschedulable": cordoned},
                "status": {"allocatable": capacity, "capacity": capacity, "images": images},
            },
        )

    # -- pods ---------------------------------------------------------------------------------

    def pod(self, name: str, cpu: str = "1", *, priority: int = 0, **spec: Any) -> None:
        requests = {"cpu": cpu, "memory": "64Mi"}
        container = {"name": "c", "image": "app:v1", "resources": {"requests": requests}}
        self._show(
            "pods",
            {
                "metadata": {"name": name, "namespace": "default", "uid": name},
                "spec": {"containers": [container], "priority": priority, **spec},
                "status": {"phase": "Pending"},
            },
        )

    def bind(self, name: str, node: str) -> None:
        pod = self._objects["pods", name]
        pod["spec"]["nodeName"] = node
        pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
        self._show("pods", pod)

    def reject(self, name: str, message: str, reason: str = "Unschedulable") -> None:
        """The scheduler says why it found no node; the pod is shown as often as this is called."""
        condition = {"type": "PodScheduled", "status": "False", "reason": reason}
        pod = self._objects["pods", name]
        pod["status"]["conditions"] = [{**condition, "message": message}]
        self._show("pods", pod)

    def nominate(self, name: str, node: str) -> None:
        pod = self._objects["pods", name]
        pod["status"]["nominatedNodeName"] = node
        self._show("pods", pod)

    def phase(self, name: str, phase: str) -> None:
        pod = self._objects["pods", name]
        pod["status"]["phase"] = phase
        self._show("pods", pod)

    def delete(self, name: str) -> None:
        self.line("pods", "DELETED", self._objects.pop(("pods", name)))

    def list_pods(self) -> None:
        """A new list, with what is there now."""
        items = [item for (resource, _), item in self._objects.items() if resource == "pods"]
        self.line("pods", "LISTED", {"metadata": {"resourceVersion": "9"}, "items": items})

    def bind_unseen(self, name: str, node: str) -> None:
        """Bind the pod without a line on the tape."""
        self._objects["pods", name]["spec"]["nodeName"] = node

    # -- playing ------------------------------------------------------------------------------

    def write(self, path: Path) -> Path:
        with gzip.open(path, "wt") as out:
            for line in self.lines:
                out.write(json.dumps(line) + "\n")
        return path


def recorded_churn(shared_dir: Path, folder: Path) -> Path:
    """The recording of a real kube-scheduler, or its first third in a fast run."""
    whole = shared_dir / "tapes" / "churn-24.jsonl.gz"
    lines = gzip.decompress(whole.read_bytes()).splitlines(keepends=True)
    path = folder / whole.name
    path.write_bytes(gzip.compress(b"".join(lines[: run_share(len(lines))])))
    return path


def play(
    path: Path, config: str = "", window: Window | None = None
) -> tuple[list[AnyRecord], Report]:
    """The records and the report of a run over the tape."""
    registry = PluginRegistry.discover()
    configuration = parse(config, "test", registry, empty_is_defaults=True)
    follower = ShadowFollower(registry.load, window)
    records = [*records_of(Tape(path), follower, configuration)]
    return records, follower.report()
