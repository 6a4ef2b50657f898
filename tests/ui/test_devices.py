"""The devices of nodes by driver: counts after every record, and in the answers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from asched.journal.opening import open_journal
from asched.model.resource_claims import ResourceClaim, ResourceSlice
from asched.state.cluster import ClusterState
from asched.state.records import ObjectDeleted
from asched.ui.device_history import DeviceHistory, DeviceTracker, DeviceUses, DriverDevices
from tests.audit.recording import Recording, node
from tests.plugins.dynamic_resources.objects import a_claim, a_slice, an_allocation
from tests.ui.serving import ui_on

TAINT = {"key": "broken", "value": "yes", "effect": "NoSchedule"}
NODES = ("n0", "n1")


def counted(state: ClusterState, node_name: str) -> DeviceUses:
    """The devices of a node, counted from all objects."""
    newest: dict[str, int] = {}
    slices = state.objects(ResourceSlice).values()
    for item in slices:
        pool = item.spec.pool
        newest[pool.name] = max(pool.generation, newest.get(pool.name, 0))
    taken = {
        (one.pool, one.device)
        for claim in state.objects(ResourceClaim).values()
        if claim.status.allocation is not None
        for one in claim.status.allocation.devices.results
    }
    kinds = Counter(
        "allocated" if (item.spec.pool.name, device.name) in taken else
        "tainted" if device.taints else "free"
        for item in slices
        if item.spec.node_name == node_name
        and item.spec.pool.generation == newest[item.spec.pool.name]
        for device in item.spec.devices
    )  # fmt: skip
    if not kinds:
        return {}
    use = DriverDevices(kinds.total(), kinds["allocated"], kinds["tainted"], kinds["free"])
    return {"gpu.example.com": use}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("slice", "no slice", "claim", "no claim")),
        st.sampled_from(NODES),
        st.integers(0, 3),
    ),
    max_size=20,
)


@given(STEPS)
def test_devices_are_counted_after_every_record(steps: list[tuple[str, str, int]]) -> None:
    recording, history = Recording(), DeviceHistory()
    recording.see(*map(node, NODES))
    history.begin(len(recording.records), recording.state)
    expected: dict[int, list[DeviceUses]] = {}
    for what, name, number in steps:
        match what:
            case "slice":
                tainted = {"name": "gpu-1", "taints": [TAINT]} if number % 2 else "gpu-1"
                new = a_slice(name, "gpu-0", tainted, name=f"{name}-{number}")
                pool = replace(new.spec.pool, generation=1 + number // 2)
                recording.see(replace(new, spec=replace(new.spec, pool=pool)))
            case "no slice" if f"{name}-{number}" in recording.state.objects(ResourceSlice):
                recording.add(ObjectDeleted("ResourceSlice", f"{name}-{number}", ""))
            case "claim":
                taken = an_allocation(name, f"gpu-{number % 2}") if number < 3 else None
                recording.see(a_claim(f"c{number}", allocation=taken))
            case "no claim" if f"d/c{number}" in recording.state.objects(ResourceClaim):
                recording.add(ObjectDeleted("ResourceClaim", f"d/c{number}", ""))
        seq = len(recording.records)
        history.apply(seq, recording.records[-1])
        expected[seq] = [counted(recording.state, one) for one in NODES]
        folded = DeviceTracker.of(recording.state)
        assert [folded.uses(one) for one in NODES] == expected[seq]
    stored = DeviceHistory()
    for change in history.unsaved:
        stored.add(change)
    for seq, uses in expected.items():
        assert [history.of_node(one, seq) for one in NODES] == uses
        assert stored.at(seq) == history.at(seq)


def with_devices() -> Recording:
    """Two of four devices of a node are taken one after the other; one has a taint."""
    recording = Recording()
    recording.see(node("n0"), node("n1"))
    recording.see(a_slice("n0", "gpu-0", "gpu-1", {"name": "gpu-2", "taints": [TAINT]}, "gpu-3"))
    for number in range(2):
        recording.turn(number + 1.0)
        recording.see(a_claim(f"c{number}", allocation=an_allocation("n0", f"gpu-{number}")))
    return recording


async def test_answers_have_devices_now_and_in_the_past(tmp_path: Path) -> None:
    path, recording = str(tmp_path / "journal.db"), with_devices()
    async with open_journal(path) as store:
        await recording.store_in(store)
    async with ui_on(path, index_dir=tmp_path) as client:
        await client.caught_up()
        end = len(recording.records)
        now, then = await client.get("/cluster"), await client.get("/cluster", seq=end - 2)
        difference = await client.get("/cluster/difference", fromSeq=end - 2, toSeq=end)
        detail = await client.get("/cluster/nodes/n0", seq=end)
    async with ui_on(path, index_dir=tmp_path) as client:
        await client.caught_up()
        assert await client.get("/cluster", seq=end - 2) == then
    driver = "gpu.example.com"
    assert now["drivers"] == [driver]
    first, second = (one["devices"] for one in now["nodes"])
    assert first == {driver: {"devices": 4, "allocated": 2, "tainted": 1, "free": 1}}
    assert second == {}
    assert detail["node"]["devices"] == first
    assert then["nodes"][0]["devices"][driver]["allocated"] == 1
    (changed,) = difference["nodesChanged"]
    assert changed["changes"] == [f"{driver} allocated 1 -> 2"]
