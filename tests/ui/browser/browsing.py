"""A real browser on the pages of a journal."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

for _name in ("playwright", "axe_playwright_python"):
    pytest.importorskip(_name, reason=f"{_name} is not installed (make setup): no page is tested")

from axe_playwright_python.async_playwright import Axe  # noqa: E402
from playwright.async_api import (  # noqa: E402
    Browser,
    ConsoleMessage,
    Page,
    Request,
    ViewportSize,
    async_playwright,
    expect,
)

from asched.ui.lab.runs import LabSettings  # noqa: E402
from asched.ui.security import Access  # noqa: E402
from tests.ui.serving import Client, ui_on  # noqa: E402

WIDTH_PX, HEIGHT_PX = 1280, 900
PHONE: Final = (390, 844)
SCREENSHOTS_ENV: Final = "ASCHED_SCREENSHOTS"
"""Names the folder into which the tests write screenshots."""
_SERIOUS: Final = ("serious", "critical")
_CONTRAST: Final = """
axe.run({runOnly: ["color-contrast"], resultTypes: ["violations"]})
  .then(({violations}) => violations.flatMap((one) => one.nodes.map((node) => node.html)))
"""
expect.set_options(timeout=20_000)


def words(name: str) -> str:
    """A name of the API as pages show it."""
    return re.sub("(?<=[a-z])(?=[A-Z])", " ", name).lower()


@dataclass
class Tab:
    """A page of the browser, and everything that went wrong in it."""

    page: Page
    url: str
    problems: list[str] = field(default_factory=list)
    """Errors of scripts, violations of the Content-Security-Policy, requests to other hosts."""

    def __post_init__(self) -> None:
        for event, note in self._listeners.items():
            self.page.on(event, note)

    @cached_property
    def _listeners(self) -> dict[Any, Callable[[Any], None]]:
        return {
            "console": self._note_message,
            "pageerror": lambda error: self.problems.append(str(error)),
            "dialog": lambda dialog: self.problems.append(dialog.message),
            "request": self._note_request,
        }

    def detach(self) -> None:
        """Leave the page to another test."""
        for event, note in self._listeners.items():
            self.page.remove_listener(event, note)

    def _note_message(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def _note_request(self, request: Request) -> None:
        if not request.url.startswith((self.url, "data:")):
            self.problems.append(f"request to {request.url}")

    async def open(self, path: str) -> None:
        """Load a page and wait until its modules have drawn it."""
        await self.page.goto(self.url + path)
        await self.ready()

    async def ready(self) -> None:
        await expect(self.page.locator("[aria-busy=true]")).to_have_count(0)

    async def text(self, selector: str) -> str:
        return " ".join((await self.page.locator(selector).inner_text()).split())

    async def texts(self, selector: str) -> list[str]:
        found = await self.page.locator(selector).all_inner_texts()
        return [" ".join(text.split()) for text in found]

    async def rows(self, selector: str) -> list[list[str]]:
        """The cells of each row of a table's body."""
        return [
            await self._cells(row) for row in await self.page.locator(f"{selector} tbody tr").all()
        ]

    async def _cells(self, row: Any) -> list[str]:
        return [" ".join(text.split()) for text in await row.locator("th, td").all_inner_texts()]

    async def violations(self) -> list[str]:
        """Serious violations of the rules of axe-core."""
        found = await Axe().run(self.page)
        return [
            f"{one['id']}: {one['nodes'][0]['html'][:200]}"
            for one in found.response["violations"]
            if one["impact"] in _SERIOUS
        ]

    async def violations_in_both_schemes(self) -> list[str]:
        """As :meth:`violations`, and the contrast of the dark colours: nothing else depends on
        them."""
        found = await self.violations()
        await self.page.emulate_media(color_scheme="dark")
        dark = await self.page.evaluate(_CONTRAST)
        await self.page.emulate_media(color_scheme="light")
        return found + [f"dark: {html[:200]}" for html in dark]

    async def screenshot(self, name: str) -> None:
        """Written only if :data:`SCREENSHOTS_ENV` names a folder. The footer is left out: it names
        a temporary file."""
        folder = os.environ.get(SCREENSHOTS_ENV)
        if folder:
            await self.page.locator(".foot").evaluate("foot => { foot.style.opacity = 0 }")
            await self.page.set_viewport_size({"width": 1120, "height": 720})
            await self.page.screenshot(path=Path(folder) / f"{name}.png")


class Screen(NamedTuple):
    width_px: int = WIDTH_PX
    height_px: int = HEIGHT_PX
    dark: bool = False
    token: str = ""
    """What the server asks for; empty for no login."""
    lab: LabSettings | None = None


DESK: Final = Screen()


class SharedJournal(str):
    """The path of a journal that tests only read: they share a server."""

    __slots__ = ()


class Chromium:
    """The browser of all tests, and the servers that they share. Made by :meth:`run`."""

    def __init__(self, browser: Browser, stack: AsyncExitStack) -> None:
        self.browser = browser
        self._stack = stack
        self._clients: dict[str, Client] = {}
        self._pages: dict[tuple[str, Screen], Page] = {}

    @classmethod
    @asynccontextmanager
    async def run(cls, path: str) -> AsyncIterator[Chromium]:
        async with async_playwright() as tools, AsyncExitStack() as stack:
            browser = await tools.chromium.launch(
                executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"]
            )
            try:
                yield cls(browser, stack)
            finally:
                await browser.close()

    async def client(self, journal: SharedJournal) -> Client:
        """A client of the server on the journal, which runs until the browser ends."""
        if journal not in self._clients:
            self._clients[journal] = await self._stack.enter_async_context(ui_on(str(journal)))
        return self._clients[journal]

    async def new_page(self, screen: Screen) -> Page:
        """A page with cookies and stored values of its own."""
        context = await self.browser.new_context(
            viewport=ViewportSize(width=screen.width_px, height=screen.height_px),
            color_scheme="dark" if screen.dark else "light",
            timezone_id="Asia/Kolkata",
            # An endless animation is drawn 60 times a second by the CPU, in every kept page.
            reduced_motion="reduce",
        )
        return await context.new_page()

    @asynccontextmanager
    async def shared_tab(self, client: Client, screen: Screen) -> AsyncIterator[Tab]:
        """A tab on a shared server.

        The page serves the next test of the server unless this one fails or leaves cookies or
        stored values: a new page needs a new process, which costs more than most tests.
        """
        page = self._pages.pop((client.url, screen), None) or await self.new_page(screen)
        context, tab = page.context, Tab(page, client.url)
        try:
            yield tab
            tab.detach()
            await page.unroute_all()
            state = await context.storage_state()
            if not state["cookies"] and not state["origins"] and len(context.pages) == 1:
                self._pages[client.url, screen] = page
        finally:
            if page not in self._pages.values():
                await context.close()


@asynccontextmanager
async def browsing(
    chromium: Chromium, journal: str, screen: Screen = DESK
) -> AsyncIterator[tuple[Tab, Client]]:
    """A tab, and a client of the same server. Nothing may have gone wrong at the end."""
    async with AsyncExitStack() as stack:
        if isinstance(journal, SharedJournal) and not screen.token and screen.lab is None:
            client = await chromium.client(journal)
            tab = await stack.enter_async_context(chromium.shared_tab(client, screen))
        else:
            served = ui_on(str(journal), Access(screen.token), screen.lab)
            client = await stack.enter_async_context(served)
            tab = await stack.enter_async_context(tab_on(chromium, client, screen))
        await client.caught_up()
        yield tab, client
        assert tab.problems == []


@asynccontextmanager
async def tab_on(chromium: Chromium, client: Client, screen: Screen = DESK) -> AsyncIterator[Tab]:
    """A tab on the server of the client, with cookies of its own."""
    page = await chromium.new_page(screen)
    try:
        yield Tab(page, client.url)
    finally:
        await page.context.close()
