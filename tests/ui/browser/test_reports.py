"""HTML reports of commands are legible in a window of 420 pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import anyio
import pytest

from tests.ui.browser.browsing import Chromium, Screen
from tests.ui.serving import invoke

EXAMPLES: Final = Path(__file__).parents[3] / "docs" / "examples"
WIDTH_PX: Final = 420
_LEAST_PX: Final = 10
_MEASURE: Final = """() => ({
  page: document.documentElement.scrollWidth,
  texts: [...document.querySelectorAll("svg text")].map((text) => {
    const { a, b } = text.getScreenCTM();
    const { left, right } = text.getBoundingClientRect();
    return [left, right, parseFloat(getComputedStyle(text).fontSize) * Math.hypot(a, b)];
  }),
})"""
_CONFIG: Final = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles: [{pluginConfig: [{name: NodeResourcesFit,
  args: {scoringStrategy: {type: MostAllocated}}}]}]
"""
_SWEEP: Final = """
apiVersion: asched.dev/v1
kind: Sweep
workload: {scenario: SCENARIO}
configs: [recorded, packing.yaml]
"""
COMMANDS: Final = {
    "simulate": "simulate SCENARIO --config packing.yaml --html report.html",
    "sweep": "sweep sweep.yaml --html report.html",
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
async def test_charts_fit_a_narrow_window(
    chromium: Chromium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    scenario = str(EXAMPLES / "scenario.yaml")
    (tmp_path / "packing.yaml").write_text(_CONFIG)
    (tmp_path / "sweep.yaml").write_text(_SWEEP.replace("SCENARIO", scenario))
    words = command.replace("SCENARIO", scenario).split()
    code, _, err = await anyio.to_thread.run_sync(invoke, *words)
    assert code == 0, err
    page = await chromium.new_page(Screen(width_px=WIDTH_PX))
    await page.goto((tmp_path / "report.html").as_uri())
    found = await page.evaluate(_MEASURE)
    await page.context.close()
    assert found["page"] <= WIDTH_PX
    assert found["texts"]
    for left, right, font_px in found["texts"]:
        assert left >= 0
        assert right <= WIDTH_PX
        assert font_px >= _LEAST_PX
