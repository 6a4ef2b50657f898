"""The audit of dependencies: its output, and the packages that it checks."""

from __future__ import annotations

import msgspec

from tests.security.audit import CONSTRAINTS, Report, findings, first_requirement


def test_audit_prints_one_line_per_vulnerability() -> None:
    report = msgspec.json.decode(
        b'{"dependencies": [{"name": "left", "skip_reason": "not found"}, {"name": "right",'
        b' "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"], "aliases": []},'
        b' {"id": "PYSEC-2", "fix_versions": []}]}, {"name": "good", "version": "2", "vulns": []}],'
        b' "fixes": []}',
        type=Report,
    )
    assert report.audited == 2
    assert [*findings(report)] == [
        "right 1.0: PYSEC-1, fixed in 1.1",
        "right 1.0: PYSEC-2, fixed in no version yet",
    ]


def test_one_requirement_with_its_hashes() -> None:
    text = "# pinned\na==1 \\\n    --hash=sha256:1 \\\n    --hash=sha256:2\nb==2 \\\n    --hash=x\n"
    assert first_requirement(text) == "a==1 \\\n    --hash=sha256:1 \\\n    --hash=sha256:2\n"


def test_every_pin_has_a_hash() -> None:
    blocks = CONSTRAINTS.read_text().replace("\\\n", "").splitlines()
    pinned = [line for line in blocks if line and not line.startswith("#")]
    assert len(pinned) > 50
    assert all("==" in line and "--hash=sha256:" in line for line in pinned)
