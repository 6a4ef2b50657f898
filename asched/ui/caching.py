"""What browsers may keep: static files for ever, answers about a fixed record until they differ."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from secrets import token_hex
from typing import Final

from aiohttp import web

from asched.ui.questions import VISIBLE

FOREVER: Final = "public, max-age=31536000, immutable"
CHECKED: Final = "private, no-cache"
"""Kept, and compared with the server before each use."""
_PROCESS: Final = token_hex(8)
"""Answers of another start may be those of another version or another journal."""


def digest_of(folder: Path) -> str:
    """Changes with each file of a folder. Modules import each other by relative paths, so all files
    share it."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            digest.update(f"{file.relative_to(folder)}\0{file.stat().st_size}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


async def tagged(
    request: web.Request, fixed: bool, respond: Callable[[], Awaitable[web.Response]]
) -> web.Response:
    """The response with an entity tag if the answer is ``fixed``; 304 if the client has it.

    The tag follows from the question and from what the reader may see: an answer that the client
    has is not computed again.
    """
    if not fixed:
        return await respond()
    visible = request[VISIBLE]
    seen = (visible.everywhere, visible.nodes, *sorted(visible.namespaces))
    asked = f"{request.path_qs} {seen}"
    tag = f'"{_PROCESS}-{hashlib.sha256(asked.encode()).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": CHECKED}
    known = request.headers.get("If-None-Match", "")
    if tag in (one.strip().removeprefix("W/") for one in known.split(",")):
        return web.Response(status=304, headers=headers)
    response = await respond()
    response.headers.update(headers)
    return response
