// Charts of a comparison: the runs as lines over the simulated time.

import { byId, durationText, element, fetchAnswer, page, showing } from "./dom.js";
import { LineChart, count, percent } from "./charts.js";

const STEP_MS = 1;
const begin = Date.parse(page.begin);

const rank = (value) => `${value} %`;

/** The value of a step function: that of the last step that is not later. */
function valueAt({ seconds, values }, at) {
  let low = 0;
  let high = seconds.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (seconds[middle] <= at) low = middle + 1;
    else high = middle;
  }
  return low ? values[low - 1] : null;
}

/** Points at every step of any of the series, and just before it, so that lines are steps. */
function steps(series, end) {
  const times = new Set([0, end]);
  for (const { seconds } of series) for (const at of seconds) times.add(at);
  const points = [];
  for (const at of [...times].sort((a, b) => a - b)) {
    const values = series.map((one) => valueAt(one, at));
    const last = points.at(-1);
    if (last && last.values.some((value, index) => value !== values[index])) {
      points.push({ at: new Date(begin + at * 1000 - STEP_MS), values: last.values });
    }
    points.push({ at: new Date(begin + at * 1000), values });
  }
  return points.map(({ at, values }) => ({ at: at.toISOString(), values }));
}

function lines(runs) {
  return runs.map(({ label }, index) => ({ name: label, of: ({ values }) => values[index] }));
}

/** Short names for legends: that of the candidate may be long. */
function labelled({ baseline, candidate, recorded }) {
  const runs = [{ ...baseline, label: baseline.name }, { ...candidate, label: "candidate" }];
  return recorded ? [...runs, { ...recorded, label: recorded.name }] : runs;
}

function drawSteps(id, runs, of, format, end) {
  const having = runs.filter((run) => of(run));
  new LineChart(byId(id), format).show(steps(having.map(of), end), lines(having));
}

function drawWaits(runs) {
  const having = runs.filter(({ waits }) => waits.percents.length);
  const points = (having[0]?.waits.percents ?? []).map((x, index) => ({
    x, values: having.map(({ waits }) => waits.seconds[index]),
  }));
  new LineChart(byId("waits"), durationText, { name: "Share of bound pods", format: rank })
    .show(points, lines(having));
}

function panel(id, title) {
  byId("charts").append(element("section", { class: "panel half" },
    element("h2", {}, title), element("div", { class: "chart", id })));
}

async function draw() {
  const { report } = await fetchAnswer(page.source);
  const runs = labelled(report);
  const end = Math.max((Date.parse(report.end) - begin) / 1000, 0.001);
  drawWaits(runs);
  drawSteps("placed", runs, (run) => run.placed, count, end);
  drawSteps("pending", runs, (run) => run.pending, count, end);
  drawSteps("evicted", runs, (run) => run.evicted, count, end);
  for (const [index, resource] of Object.keys(report.baseline.utilisation).entries()) {
    panel(`used-${index}`, `${resource}: requested share`);
    drawSteps(`used-${index}`, runs, (run) => run.utilisation[resource], percent, end);
  }
  byId("charts").setAttribute("aria-busy", "false");
}

showing(byId("trouble"), draw);
