"""Which host ports are taken where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from asched.framework.pod_info import ANY_IP, HostPort


def ports_collide(wanted: HostPort, taken: HostPort) -> bool:
    """Same protocol and port, and the same address or one of them the wildcard 0.0.0.0."""
    return (
        wanted.port == taken.port
        and wanted.protocol == taken.protocol
        and (wanted.ip == taken.ip or ANY_IP in (wanted.ip, taken.ip))
    )


class PortIndex:
    """For each (protocol, port), the rows where it is taken and on which addresses."""

    __slots__ = ("taken",)

    def __init__(self) -> None:
        self.taken: dict[tuple[str, int], dict[int, Counter[str]]] = {}
        """By protocol and port, by row: how often it is taken on each address."""

    def add(self, row: int, ports: Iterable[HostPort]) -> None:
        for port in ports:
            rows = self.taken.setdefault((port.protocol, port.port), {})
            rows.setdefault(row, Counter())[port.ip] += 1

    def remove(self, row: int, ports: Iterable[HostPort]) -> None:
        for port in ports:
            key = (port.protocol, port.port)
            rows = self.taken[key]
            addresses = rows[row]
            addresses[port.ip] -= 1
            if not addresses[port.ip]:
                del addresses[port.ip]
            if not addresses:
                del rows[row]
            if not rows:
                del self.taken[key]

    def conflicting_rows(self, ports: Sequence[HostPort]) -> list[int]:
        """Rows where any of ``ports`` cannot be had, in no particular order, possibly repeated."""
        found: list[int] = []
        for wanted in ports:
            rows = self.taken.get((wanted.protocol, wanted.port))
            if not rows:
                continue
            if wanted.ip == ANY_IP:
                found.extend(rows)
            else:
                found.extend(
                    row
                    for row, addresses in rows.items()
                    if wanted.ip in addresses or ANY_IP in addresses
                )
        return found
