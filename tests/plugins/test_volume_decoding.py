"""Storage objects with invalid quantities are rejected when decoded."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from asched.model.resources import DecodeError, Resource, decode

METADATA = {"name": "x", "namespace": "d"}


@pytest.mark.parametrize(
    ("resource", "fields", "where"),
    [
        (
            Resource.PERSISTENT_VOLUMES,
            {"spec": {"capacity": {"storage": "1Gib"}}},
            "spec.capacity.storage",
        ),
        (
            Resource.PERSISTENT_VOLUME_CLAIMS,
            {"spec": {"resources": {"requests": {"storage": "much"}}}},
            "spec.resources.requests.storage",
        ),
        (Resource.CSI_STORAGE_CAPACITIES, {"capacity": "1 Gi"}, "CSIStorageCapacity.capacity"),
        (
            Resource.CSI_STORAGE_CAPACITIES,
            {"maximumVolumeSize": ""},
            "CSIStorageCapacity.maximumVolumeSize",
        ),
    ],
)
def test_invalid_quantity_is_rejected(
    resource: Resource, fields: dict[str, Any], where: str
) -> None:
    with pytest.raises(DecodeError, match=where):
        decode(resource, msgspec.json.encode({"metadata": METADATA, **fields}))


@pytest.mark.parametrize(
    ("resource", "fields"),
    [
        (Resource.PERSISTENT_VOLUMES, {"spec": {"capacity": {"storage": "1.5Gi"}}}),
        (Resource.PERSISTENT_VOLUME_CLAIMS, {"spec": {}}),
        (Resource.CSI_STORAGE_CAPACITIES, {"capacity": "9000P", "maximumVolumeSize": None}),
        (Resource.STORAGE_CLASSES, {"provisioner": "x"}),
    ],
)
def test_quantities_are_decoded(resource: Resource, fields: dict[str, Any]) -> None:
    assert decode(resource, msgspec.json.encode({"metadata": METADATA, **fields})).name == "x"
