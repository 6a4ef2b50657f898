"""Simulated drivers: ``asched apiserver --devices``."""

from __future__ import annotations

import pytest

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.dra.devices import DEFAULT_DRIVER, DeviceSpec, SimulatedDriver
from tests.apiserver.objects import node


def test_grammar() -> None:
    assert DeviceSpec.parse("4") == DeviceSpec(4)
    text = "8,driver=nic.example.com,model=A100,memory=80Gi,numa=1,ecc=true,firmware=1.2.3,wait=Up"
    assert DeviceSpec.parse(text) == DeviceSpec(
        8,
        "nic.example.com",
        {
            "model": {"string": "A100"},
            "numa": {"int": 1},
            "ecc": {"bool": True},
            "firmware": {"version": "1.2.3"},
        },
        {"memory": {"value": "80Gi"}},
        ("Up",),
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "devices '': the number of devices is 1 to 4096"),
        ("0", "the number of devices is 1 to 4096"),
        ("9999", "the number of devices is 1 to 4096"),
        ("2,model", "'model' is not NAME=VALUE; write COUNT"),
        ("2,a b=c", "'a b=c' is not NAME=VALUE"),
        ("2,driver=Bad_Name", "'Bad_Name' is not the name of a driver"),
    ],
)
def test_bad_grammar_is_one_line(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match="devices") as raised:
        DeviceSpec.parse(text)
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)


def test_every_node_has_devices_while_it_exists() -> None:
    cluster = EmbeddedCluster(seed=1)
    cluster.create("nodes", node("first"))
    driver = SimulatedDriver(cluster, DeviceSpec.parse("130,model=A100,memory=80Gi,wait=Attached"))
    driver.attach()
    driver.step()
    (device_class,) = cluster.list("deviceclasses")
    assert device_class["metadata"]["name"] == DEFAULT_DRIVER
    slices = cluster.list("resourceslices")
    assert [len(each["spec"]["devices"]) for each in slices] == [128, 2]
    assert {each["spec"]["pool"]["resourceSliceCount"] for each in slices} == {2}
    assert slices[1]["spec"]["devices"][1] == {
        "name": "gpu-129",
        "attributes": {"model": {"string": "A100"}, "index": {"int": 129}},
        "capacity": {"memory": {"value": "80Gi"}},
        "bindingConditions": ["Attached"],
        "bindingFailureConditions": ["AttachedFailed"],
    }
    cluster.create("nodes", node("second"))
    driver.step()
    assert cluster.count("resourceslices") == 4
    cluster.delete("nodes", "first")
    driver.step()
    assert {each["spec"]["nodeName"] for each in cluster.list("resourceslices")} == {"second"}
