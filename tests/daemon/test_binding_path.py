"""The path of a pod from the watch line to the binding request, as ARCHITECTURE.md lists it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType

from tests.daemon.world import KUBE, world

ARCHITECTURE = Path(__file__).parents[2] / "ARCHITECTURE.md"
PACKAGE = str(Path(__file__).parents[2] / "asched")
REQUEST = "ApiClient.request"
MAX_FUNCTIONS = 12


def documented_path() -> list[str]:
    text = ARCHITECTURE.read_text()
    section = text[text.index("## One pod, from watch to bind") :]
    section = section[: section.index("\n## ", 1)]
    return re.findall(r"^\d+\. `([\w.]+)`", section, re.MULTILINE)


class CallTrace:
    """Calls of the given functions on this thread, in order."""

    def __init__(self, names: list[str]) -> None:
        self.calls: list[str] = []
        self.binding_stack: list[str] = []
        """Functions of the package on the stack of the first binding request, innermost first."""
        self._names = set(names)

    def __enter__(self) -> CallTrace:
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, arg: object) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        name = frame.f_code.co_qualname
        if name in self._names:
            self.calls.append(name)
        path = str(frame.f_locals.get("path", ""))
        if name == REQUEST and path.endswith("/binding") and not self.binding_stack:
            self.binding_stack = [*_functions(frame.f_back)]


def _functions(frame: FrameType | None) -> list[str]:
    found = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            found.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return found


async def test_binding_path_is_the_documented_one(tmp_path: Path) -> None:
    path = documented_path()
    assert 10 <= len(path) <= MAX_FUNCTIONS
    async with world(tmp_path, nodes=1) as w, w.daemon(KUBE) as daemon:
        await daemon.engine.synced.wait()
        trace = CallTrace(path)
        with trace:
            w.add_pod("p")
            await w.until(lambda: not w.unbound())
    calls = iter(trace.calls)
    assert [name for name in path if name in calls] == path, trace.calls
    assert 0 < len(trace.binding_stack) <= MAX_FUNCTIONS, trace.binding_stack
    assert trace.binding_stack[0] == path[-1]
