"""The sink converges to the state of the server despite faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.http import ApiServer
from asched.kube.reflector import UNFINISHED_PODS, Reflector, ReflectorSettings
from asched.model.pod import Pod, reduced_pod
from asched.model.resources import Resource, decode
from tests.kube.harness import ManualClock, View, client_for, running

NAMES = ("a", "b", "c", "d", ".".join(["e" * 62] * 4)[:253])


class Step(NamedTuple):
    """A step: a change of a pod, or a fault of the server."""

    what: str
    name: str
    amount: int
    settle: bool
    """Whether the sink catches up before the next step, so that watches deliver single changes."""


POD_STEPS = ("label", "bind", "finish", "delete")
"""Applied to a missing pod, each creates it."""
SERVER_STEPS = (
    "expire",
    "drop lists",
    "drop watches",
    "refuse lists",
    "refuse watches",
    "overload",
    "malform",
    "close after",
    "never close",
)

steps = st.lists(
    st.one_of(
        st.builds(
            Step,
            st.sampled_from(POD_STEPS),
            st.sampled_from(NAMES),
            st.integers(0, 9),
            st.booleans(),
        ),
        st.builds(
            Step, st.sampled_from(SERVER_STEPS), st.just(""), st.integers(1, 3), st.booleans()
        ),
    ),
    min_size=10,
    max_size=60,
)


class History:
    """A server that runs the steps, and its true state."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.cluster = server.cluster
        self.writes = 0

    def expected(self) -> dict[str, Any]:
        pods = (decode(Resource.PODS, stored.encoded()) for stored in self.cluster.stored("pods"))
        alive = {pod.key: pod for pod in pods}
        finished = {
            f"default/{pod['metadata']['name']}"
            for pod in self.cluster.list("pods")
            if pod["status"].get("phase") in ("Succeeded", "Failed")
        }
        return {key: pod for key, pod in alive.items() if key not in finished}

    def take(self, step: Step) -> None:
        if step.what in POD_STEPS:
            self._change_pod(step)
        else:
            self._trouble(step)

    def _change_pod(self, step: Step) -> None:
        cluster, name = self.cluster, step.name
        found = [pod for pod in cluster.list("pods") if pod["metadata"]["name"] == name]
        if not found:
            spec = {"containers": [{"name": "c", "image": "x"}]}
            cluster.create("pods", {"metadata": {"name": name}, "spec": spec})
        elif step.what == "label":
            patch: dict[str, Any] = {"metadata": {"labels": {"n": str(step.amount)}}}
            cluster.patch("pods", name, patch, namespace="default")
        elif step.what == "bind" and not found[0]["spec"].get("nodeName"):
            cluster.bind("default", name, f"n{step.amount}")
        elif step.what == "finish":
            patch = {"status": {"phase": "Succeeded"}}
            cluster.patch("pods", name, patch, namespace="default", subresource="status")
        elif step.what == "delete":
            cluster.delete("pods", name, namespace="default", grace_period_s=0)
        self.writes += 1

    def _trouble(self, step: Step) -> None:
        faults, count = self.server.faults, step.amount
        limit = "watch_closes_after_events"
        troubles: dict[str, Callable[[], None]] = {
            "expire": self.cluster.expire_history,
            "drop lists": lambda: faults.drop(count=count, verb="list"),
            "drop watches": lambda: faults.drop(count=count, verb="watch"),
            "refuse lists": lambda: faults.respond(503, count=count, verb="list"),
            "refuse watches": lambda: faults.respond(500, count=count, verb="watch"),
            "overload": lambda: faults.respond(429, count=count, retry_after_s=count),
            "malform": lambda: faults.malform_watch_lines(count),
            "close after": partial(setattr, faults, limit, count),
            "never close": partial(setattr, faults, limit, None),
        }
        troubles[step.what]()


def _as_recorded(pods: Mapping[str, Any]) -> dict[str, Pod]:
    """A list leaves out statuses that are not recorded, a watch does not."""
    return {key: reduced_pod(pod) for key, pod in pods.items()}


@given(history=steps, seed=st.integers(0, 1000))
async def test_sink_converges_to_server_state(history: list[Step], seed: int) -> None:
    clock, view = ManualClock(), View()
    server = ApiServer(EmbeddedCluster(seed=seed))
    async with server.run(), client_for(server.url, clock, seed=seed) as client:
        past = History(server)
        settings = ReflectorSettings(page_limit=2)
        reflector = Reflector(client, Resource.PODS, view, settings, field_selector=UNFINISHED_PODS)

        def caught_up() -> bool:
            known = _as_recorded(view.of(Resource.PODS))
            return reflector.synced and known == _as_recorded(past.expected())

        async with running(reflector.run):
            for step in history:
                past.take(step)
                if step.settle:
                    await view.until(caught_up)
            await view.until(caught_up)
        # Each request made progress, met a fault, or followed a delay of at least 0.4 s.
        assert server.requests_served <= (
            2 * past.writes + 2 * server.faults.injected + clock.now_s / 0.4 + 10
        )
        assert reflector.decoder.counts.skipped <= server.faults.injected
