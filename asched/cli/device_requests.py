"""What the requests of a pod's claims find, by groups of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from asched.cli.output import print_table

if TYPE_CHECKING:
    from asched.audit.devices import DeviceRequestExplanation
    from asched.audit.explanation import NodeExplanation


_RUNTIME_ERROR: Final = "CEL runtime error"
"""Part of the reason of a device on which a selector fails. It fails the attempt."""


def print_device_requests(nodes: Sequence[NodeExplanation]) -> None:
    """Print what each request finds on the rejected nodes; nodes with equal findings share a row.

    Nothing if devices are no reason of a rejection.
    """
    groups: dict[tuple[object, ...], list[str]] = {}
    requests: dict[tuple[str, str, str], None] = {}
    for node in nodes:
        for request in node.requests:
            requests[request.claim, request.request, request.matching] = None
            groups.setdefault(_findings(request), []).append(node.name)
        for problem in node.device_problems:
            groups.setdefault(("", "", "", "", problem, ""), []).append(node.name)
    if not groups:
        return
    ordered = sorted(groups.items(), key=lambda group: (str(group[0][0]), -len(group[1])))
    rows = [(_names(names), *findings) for findings, names in ordered]
    columns = ("NODES", "CLAIM", "REQUEST", "NEEDS", "SUITABLE DEVICES", "REFUSED", "WOULD HELP")
    print_table(columns, rows)
    if requests:
        print_table(("CLAIM", "REQUEST", "MATCHING DEVICES ARE OF"), requests)


def _findings(request: DeviceRequestExplanation) -> tuple[object, ...]:
    return (
        request.claim,
        request.request,
        "all" if request.wanted is None else request.wanted,
        f"{request.suitable} of {request.considered}",
        ", ".join((*_refusals(request), *_limits(request))),
        _would_help(request),
    )


def _refusals(request: DeviceRequestExplanation) -> Iterator[str]:
    return (f"{count} {reason}" for reason, count in request.refused.items())


def _limits(request: DeviceRequestExplanation) -> Iterator[str]:
    return (f"{reason} allows {most} at a time" for reason, most in request.limited_by.items())


def _would_help(request: DeviceRequestExplanation) -> str:
    if request.wanted is None:
        return "all matching devices suitable"
    if any(_RUNTIME_ERROR in reason for reason in request.refused):
        return "selectors that do not fail on any device"
    missing = request.missing
    if missing > 0:
        return f"{missing} more matching device{'s' if missing > 1 else ''}"
    return "enough for this request alone; see the changes below"


def _names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} nodes such as {names[0]}"
