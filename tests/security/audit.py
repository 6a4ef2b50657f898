"""``make audit``: are vulnerabilities known of the pinned dependencies?

pip-audit asks a service for each of them. Where none can be reached, or knows none of them (an
index inside a company, which serves packages and no advisories), one line says so and nothing
fails.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints.txt"
SERVICES = ("pypi", "osv")
ANSWER_TIMEOUT_S = 5
PROBE_TIMEOUT_S = 20
"""Limits the wait on a network that drops requests."""
WHOLE_TIMEOUT_S = 300


class Vulnerability(msgspec.Struct):
    id: str
    fix_versions: list[str] = []


class Dependency(msgspec.Struct):
    name: str
    version: str = ""
    skip_reason: str | None = None
    vulns: list[Vulnerability] = []


class Report(msgspec.Struct):
    """What pip-audit writes as JSON."""

    dependencies: list[Dependency]

    @property
    def audited(self) -> int:
        return sum(dependency.skip_reason is None for dependency in self.dependencies)


def first_requirement(constraints: str) -> str:
    """The first pinned dependency with its hashes, to ask a service about before all others."""
    lines: list[str] = []
    for line in constraints.splitlines(keepends=True):
        if lines and not line.startswith(" "):
            break
        if lines or "==" in line:
            lines.append(line)
    return "".join(lines)


def audited(requirements: Path, service: str, timeout_s: float) -> Report | None:
    """None where the service does not answer."""
    with TemporaryDirectory() as folder:
        output = Path(folder) / "report.json"
        command = [
            sys.executable, "-m", "pip_audit", "--requirement", str(requirements), "--disable-pip",
            "--require-hashes", "--vulnerability-service", service, "--timeout",
            str(ANSWER_TIMEOUT_S), "--progress-spinner", "off", "--format", "json",
            "--output", str(output),
        ]  # fmt: skip
        try:
            subprocess.run(command, capture_output=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired:
            return None
        # Its status is 1 for what it finds and for what it cannot do alike.
        return msgspec.json.decode(output.read_bytes(), type=Report) if output.exists() else None


def findings(report: Report) -> Iterator[str]:
    """A line for each known vulnerability."""
    for dependency in report.dependencies:
        for vulnerability in dependency.vulns:
            fixed = ", ".join(vulnerability.fix_versions) or "no version yet"
            yield f"{dependency.name} {dependency.version}: {vulnerability.id}, fixed in {fixed}"


def main() -> int:
    with TemporaryDirectory() as folder:
        first = Path(folder) / "first.txt"
        first.write_text(first_requirement(CONSTRAINTS.read_text()))
        for service in SERVICES:
            probe = audited(first, service, PROBE_TIMEOUT_S)
            if probe is None or not probe.audited:
                continue
            report = audited(CONSTRAINTS, service, WHOLE_TIMEOUT_S)
            if report is not None and report.audited:
                lines = [*findings(report)]
                total = len(report.dependencies)
                print(f"audit: {report.audited} of {total} dependencies, {len(lines)} known")
                print("".join(f"{line}\n" for line in lines), end="")
                return bool(lines)
    print("audit: skipped, no source of advisories can be reached from here")
    return 0


if __name__ == "__main__":
    sys.exit(main())
