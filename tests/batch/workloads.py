"""Random clusters with jobs in queues, for property tests."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

from tests.batch.worlds import World

CLASSES = {"low": 1, "mid": 5, "high": 10, "system-cluster-critical": 2_000_000}


class JobPlan(NamedTuple):
    queue: int
    pods: int
    minimum: int
    running: int
    cpu: int
    memory_gi: int
    priority_class: str
    namespace: str


class Plan(NamedTuple):
    """The objects of a world."""

    nodes: tuple[tuple[int, int], ...]
    """(cores, Gi) of each."""
    weights: tuple[int, ...]
    capabilities: tuple[int, ...]
    """Capability of a queue in cores; 0 for no limit."""
    jobs: tuple[JobPlan, ...]

    def world(self, seed: int) -> World:
        world = World(seed)
        for index, (cpu, memory) in enumerate(self.nodes):
            world.node(f"n{index}", cpu=cpu, memory=f"{memory}Gi")
        for index, (weight, cores) in enumerate(zip(self.weights, self.capabilities, strict=True)):
            world.queue(f"q{index}", weight, {"cpu": cores} if cores else None)
        for name, value in CLASSES.items():
            world.priority_class(name, value)
        free = [[cpu, memory] for cpu, memory in self.nodes]
        for index, job in enumerate(self.jobs):
            on = self._places(job, free)
            world.job(
                f"j{index}",
                f"q{job.queue % len(self.weights)}",
                job.pods,
                job.minimum,
                cpu=job.cpu,
                memory=f"{job.memory_gi}Gi",
                on=on,
                priority_class=job.priority_class,
                namespace=job.namespace,
            )
        return world

    def _places(self, job: JobPlan, free: list[list[int]]) -> list[str]:
        """The nodes of its running pods: any with room. A gang without enough room does not run."""
        places = []
        for _ in range(min(job.running, job.pods)):
            for index, room in enumerate(free):
                if room[0] >= job.cpu and room[1] >= job.memory_gi:
                    room[0] -= job.cpu
                    room[1] -= job.memory_gi
                    places.append(f"n{index}")
                    break
        return places


def _jobs(
    running: st.SearchStrategy[int], minimum: st.SearchStrategy[int]
) -> st.SearchStrategy[JobPlan]:
    return st.builds(
        JobPlan,
        queue=st.integers(0, 3),
        pods=st.integers(2, 6),
        minimum=minimum,
        running=running,
        cpu=st.sampled_from([1, 1, 2, 3, 0]),
        memory_gi=st.sampled_from([1, 0, 2]),
        priority_class=st.sampled_from(["low", "", "mid", "high", "system-cluster-critical"]),
        namespace=st.sampled_from(["ns", "ns", "ns", "kube-system"]),
    )


_standing = _jobs(st.just(6), st.sampled_from([1, 1, 2, 3]))
"""Jobs that already run, if there is room."""
_pending = _jobs(st.sampled_from([0, 0, 1]), st.integers(0, 4))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Nearly full clusters, mostly used by one queue."""
    queues = draw(st.integers(1, 4))
    cores = draw(st.lists(st.integers(2, 6), min_size=1, max_size=4))
    standing = draw(st.lists(_standing, min_size=1, max_size=5))
    pending = draw(st.lists(_pending, min_size=1, max_size=5))
    return Plan(
        tuple((cpu, draw(st.sampled_from([8, 4, 2]))) for cpu in cores),
        tuple(draw(st.sampled_from([1, 2, 3, 0])) for _ in range(queues)),
        tuple(draw(st.sampled_from([0, 0, 0, 5])) for _ in range(queues)),
        (*standing, *pending),
    )
