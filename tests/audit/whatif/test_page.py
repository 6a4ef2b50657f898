"""The HTML report: well-formed, self-contained, and escaped."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.audit.whatif.comparison import NamedRun, compare
from asched.audit.whatif.measures import measured
from asched.audit.whatif.occupancy import workload_of
from asched.audit.whatif.report import (
    FRAME,
    MAX_PODS,
    TEMPLATES,
    Mark,
    comparison_page,
    run_page,
    span_label,
    time_marks,
    upper_bound,
)
from asched.simulator.trace import WorkloadRun
from tests.audit.recording import node
from tests.audit.whatif.runs import placement, pod_run, run_of, span

EVIL = "<script>alert('&\"')</script>"
ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "ul", "li", "div", "figure",
    "figcaption", "svg", "line", "path", "text", "span", "i", "table", "thead", "tbody", "tr", "th",
    "td",
}  # fmt: skip


class Reader(HTMLParser):
    """Parses a page; asserts that tags are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def some_run(where: str, *, pods: int = 3, name: str = "p") -> WorkloadRun:
    made = [
        pod_run(f"{name}{n}", placement(where, n % 40 + 1, n % 40 + 50), created_s=n % 40)
        for n in range(pods)
    ]
    return run_of(*made, nodes=(span(node("a", "9")), span(node("b", "9"))))


def compared(*, pods: int = 3, name: str = "p", title: str = "What if") -> str:
    found = compare(
        NamedRun("old", some_run("a", pods=pods, name=name)),
        NamedRun(EVIL, some_run("b", pods=pods, name=name)),
        some_run("a", pods=pods, name=name),
        notes=(f"a note {EVIL}",),
    )
    return comparison_page(found, title)


def test_names_and_messages_are_escaped() -> None:
    page = compared(name=EVIL, title=EVIL)
    reader = read(page)
    assert reader.tags <= ALLOWED
    assert not any(name.startswith("on") or name in {"href", "src"} for name in reader.attributes)
    said = " ".join(reader.words)
    assert f"default/{EVIL}0" in said
    assert f"a note {EVIL}" in said
    assert "<script" not in page


def test_page_is_self_contained() -> None:
    page = compared()
    assert "default-src 'none'" in read_policy(page)
    assert not re.search(r"https?:|url\(|@import", page)


def read_policy(page: str) -> str:
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert found is not None
    return found[1]


def test_charts_are_well_formed_and_within_the_frame() -> None:
    charts = re.findall(r"<svg.*?</svg>", compared(), re.DOTALL)
    # Waiting, pending, utilisation and fragmentation of cpu.
    assert len(charts) == 4
    for chart in charts:
        root = ET.fromstring(chart)
        assert root.get("viewBox") == f"0 0 {FRAME.width} {FRAME.height}"
        assert [one.get("class") for one in root.iter("path")] == [
            "line baseline", "line candidate", "line recorded",
        ]  # fmt: skip
        for path in root.iter("path"):
            for x, y in places(path.get("d") or ""):
                assert 0 <= x <= FRAME.width
                assert 0 <= y <= FRAME.height
        for label in root.iter("text"):
            check_fits(label)


CHARACTER_WIDTH = 6.2
"""Maximum average width in the font of the labels."""


def check_fits(label: ET.Element) -> None:
    """Asserts that a label is within the image. Labels of the y axis end at x."""
    x, width = float(label.get("x") or -1), CHARACTER_WIDTH * len(label.text or "")
    left = x - (width if label.get("class") == "up" else width / 2)
    assert left >= 0
    assert left + width <= FRAME.width


@pytest.mark.parametrize("end_s", [120, 7200, 86400, 149 * 86400])
def test_labels_of_long_runs_fit(end_s: int) -> None:
    made = [pod_run("p", placement("a", 1), created_s=0)]
    run = run_of(*made, nodes=(span("a"),), end_s=end_s)
    page = run_page("one", measured(run, workload_of(run.pods)), "One")
    for chart in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        for label in ET.fromstring(chart).iter("text"):
            check_fits(label)


def places(path: str) -> list[tuple[float, float]]:
    """The points of a step path."""
    found = []
    x = y = 0.0
    for letter, first, second in re.findall(r"([MHV])([-\d.]+)(?: ([-\d.]+))?", path):
        x = float(first) if letter in "MH" else x
        y = float(second) if letter == "M" else float(first) if letter == "V" else y
        found.append((x, y))
    assert found
    return found


def test_chart_shows_the_measured_values() -> None:
    page = run_html().replace(SVG_TAG, "<svg>")
    [chart] = re.findall(r"<svg><title>cpu util.*?</svg>", page, re.DOTALL)
    root = ET.fromstring(chart)
    [path] = root.iter("path")
    marks = {
        one.text: float(one.get("y") or 0) for one in root.iter("text") if one.get("class") == "up"
    }
    height = marks["0%"] - marks["100%"]
    shares = [(marks["0%"] - y) / height for _, y in places(path.get("d") or "")]
    # Three pods of one core each are created on 18 cores.
    assert max(shares) == pytest.approx(3 / 18, abs=0.001)
    assert shares[0] == 0.0
    assert shares[-1] == 0.0


SVG_TAG = f'<svg viewBox="0 0 {FRAME.width} {FRAME.height}" role="img">'


def run_html() -> str:
    run = some_run("a")
    return run_page("simulated", measured(run, workload_of(run.pods)), "A run", ["a note"])


def test_page_of_a_single_run() -> None:
    reader = read(run_html())
    said = " ".join(reader.words)
    assert "A run" in said
    assert "a note" in said
    assert "pods to place" in said
    assert "change" not in said
    assert "Pods placed differently" not in said


def test_empty_run_has_a_page() -> None:
    run = WorkloadRun(0, 0, (), ())
    read(run_page("nothing", measured(run, workload_of(run.pods)), "Nothing"))


def test_long_tables_are_truncated_and_counted() -> None:
    page = compared(pods=MAX_PODS + 7)
    assert f"Pods placed differently ({MAX_PODS + 7})" in page
    assert "… and 7 more" in page
    assert page.count("default/p") == MAX_PODS


def test_page_has_light_and_dark_style() -> None:
    assert "prefers-color-scheme: dark" in compared()


TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\ufffe\uffff"))
"""Characters that XML permits."""


@given(TEXTS, TEXTS)
def test_escaped_text_parses_to_the_original(plain: str, attribute: str) -> None:
    paragraph = TEMPLATES.from_string('<p title="{{ attribute }}">{{ plain }}</p>')
    found = ET.fromstring(paragraph.render(plain=plain, attribute=attribute))
    assert (found.text or "") == plain
    assert found.get("title") == attribute


@given(st.floats(0.001, 1e9))
def test_time_marks_are_few_and_within_the_span(span_s: float) -> None:
    marks = time_marks(span_s)
    assert 1 <= len(marks) <= 8
    assert marks[0] == Mark(0, "0")
    assert marks[-1].at <= span_s * 1.000001
    assert len({mark.label for mark in marks}) == len(marks)


@given(st.lists(st.floats(0, 1e9), max_size=5))
def test_upper_bound_is_round_and_close(values: list[float]) -> None:
    bound, step = upper_bound(values)
    highest = max(values, default=0)
    assert bound >= highest * 0.999999
    assert 1 <= round(bound / step) <= 10
    assert bound <= max(highest * 2, 1.0)


def test_span_labels() -> None:
    assert [span_label(s) for s in (0, 0.001, 1.5, 90, 5400, 86400, 0.12345)] == [
        "0", "1 ms", "1.5 s", "1.5 min", "1.5 h", "1 d", "0.123 s",
    ]  # fmt: skip
