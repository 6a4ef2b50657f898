"""README's terminal recording, an animated SVG.

    python -m tests.docs.terminal_recording

executes the commands of README in an empty folder, shows the output of one of them below it, and
draws all of them to ``docs/images/terminal.svg``: one screen for each command, again and again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

import anyio

from tests.docs.walkthrough import COLUMNS, TutorialRun, blocks, with_outputs

README: Final = Path(__file__).parents[2] / "README.md"
RECORDING: Final = README.parent / "docs" / "images" / "terminal.svg"
SHOWN: Final = "asched explain"
"""README shows the output of the first command that begins so."""
_ROWS: Final = 30
_CHARACTER_PX, _LINE_PX, _MARGIN_PX, _BAR_PX = 7.83, 17, 14, 28
_TYPING_S, _READING_S = 1.5, 5.5
_SCREEN_S = _TYPING_S + _READING_S
_STYLE = """\
  text { font: 13px ui-monospace, Menlo, Consolas, monospace; fill: #d0d7de; white-space: pre }
  .frame { fill: #0d1117 }
  .title { fill: #8b949e }
  .prompt { fill: #3fb950 }
  .command { fill: #ffffff; font-weight: 600 }
  .screen { opacity: 0; animation: screen %(all_s)gs linear infinite }
  .output { opacity: 0; animation: output %(all_s)gs linear infinite }
  .command { clip-path: inset(0 100%% 0 0); animation: typing %(all_s)gs infinite }
  @keyframes screen { 0%%, %(part).3f%% { opacity: 1 } %(after).3f%%, 100%% { opacity: 0 } }
  @keyframes output { 0%%, %(typed).3f%% { opacity: 0 } %(shown).3f%%, 100%% { opacity: 1 } }
  @keyframes typing { 0%% { clip-path: inset(0 100%% 0 0); animation-timing-function: steps(40) }
    %(typed).3f%%, 100%% { clip-path: inset(0 0 0 0) } }
  @media (prefers-reduced-motion: reduce) {
    .screen, .output, .command { animation: none }
    .screen:last-of-type, .screen:last-of-type * { opacity: 1; clip-path: none }
  }"""


class Screen(NamedTuple):
    """A command and the lines that it printed."""

    command: str
    lines: Sequence[str]


async def recorded() -> list[Screen]:
    """Run the commands of README one after the other in an empty folder. Raises AssertionError if
    one fails."""
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            run = TutorialRun(Path(folder), stack)
            return [
                Screen(command, _compact((await run.do(command)).splitlines()))
                for block in blocks(README.read_text())
                if block.kind == "sh"
                for command in block.text.splitlines()
            ]


def _compact(lines: Sequence[str]) -> list[str]:
    """Without trailing spaces and repeated empty lines."""
    found: list[str] = []
    for line in map(str.rstrip, lines):
        if line or (found and found[-1]):
            found.append(line)
    return found


def drawn(screens: Sequence[Screen]) -> str:
    """The SVG. A screen that is too long shows its beginning."""
    width = round(COLUMNS * _CHARACTER_PX + 2 * _MARGIN_PX)
    height = _BAR_PX + _ROWS * _LINE_PX + 2 * _MARGIN_PX
    all_s = _SCREEN_S * len(screens)
    part, typed = 100 / len(screens), 100 * _TYPING_S / all_s
    style = _STYLE % {
        "all_s": all_s,
        "part": part - 0.1,
        "after": part,
        "typed": typed,
        "shown": typed + 0.1,
    }
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            'aria-label="A terminal in which asched explains why a pod is pending">'
        ),
        f"<style>\n{style}\n</style>",
        f'<rect class="frame" width="{width}" height="{height}" rx="8"/>',
        f'<text class="title" x="{_MARGIN_PX}" y="20">asched</text>',
    ]
    for number, screen in enumerate(screens):
        lines += _screen(screen, number * _SCREEN_S)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _screen(screen: Screen, begins_s: float) -> Iterator[str]:
    delay = f'style="animation-delay: {begins_s:g}s"'
    yield f'<g class="screen" {delay}>'
    y = _BAR_PX + _MARGIN_PX + 6
    command_x = _MARGIN_PX + 2 * _CHARACTER_PX
    yield f'<text class="prompt" x="{_MARGIN_PX}" y="{y}">$</text>'
    yield f'<text class="command" {delay} x="{command_x:g}" y="{y}">{escape(screen.command)}</text>'
    yield f'<g class="output" {delay}>'
    visible = screen.lines[: _ROWS - 1]
    if len(screen.lines) > len(visible):
        visible = [*visible[:-1], "..."]
    for row, line in enumerate(visible, start=1):
        yield f'<text x="{_MARGIN_PX}" y="{y + row * _LINE_PX}">{escape(line)}</text>'
    yield "</g>\n</g>"


def shown(screens: Sequence[Screen]) -> str:
    """What README shows."""
    return "\n".join(next(each.lines for each in screens if each.command.startswith(SHOWN)))


def main() -> None:
    screens = anyio.run(recorded)
    README.write_text(with_outputs(README.read_text(), [shown(screens)]))
    RECORDING.write_text(drawn(screens))


if __name__ == "__main__":
    main()
