"""``make sbom``: the bill of materials lists what the image contains."""

from __future__ import annotations

import json
import re

import pytest
from cyclonedx.output.json import JsonV1Dot6

from tests.security import sbom


def test_every_component_is_pinned_with_its_hashes() -> None:
    document = json.loads(JsonV1Dot6(sbom.bill_of_materials()).output_as_string())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert document["metadata"]["component"]["name"] == "asched"
    names = {component["name"] for component in document["components"]}
    needed = {
        re.split(r"[\[><=; ]", text)[0].replace("_", "-") for text in sbom.project_requirements()
    }
    assert needed <= names
    assert {"cryptography", "cffi", "asyncpg"} <= names
    assert not names & {"pytest", "mypy", "pip-audit"}
    for component in document["components"]:
        assert component["purl"] == f"pkg:pypi/{component['name']}@{component['version']}"
        assert component["hashes"]
    refs = {component["bom-ref"] for component in document["components"]}
    (own,) = [d for d in document["dependencies"] if d["ref"].startswith("asched@")]
    assert {ref.partition("@")[0] for ref in own["dependsOn"]} == needed
    assert {ref for d in document["dependencies"] for ref in d.get("dependsOn", ())} <= refs


def test_package_without_a_pin_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sbom, "pinned_hashes", lambda _: {})
    with pytest.raises(sbom.SbomError, match=r"is installed, but not pinned: run make setup"):
        sbom.bill_of_materials()
