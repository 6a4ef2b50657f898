// The overview: figures and charts of a period, followed live.

import { byId, durationText, fetchAnswer, page, showing } from "./dom.js";
import { LineChart, amount, count, namedSeries, percent } from "./charts.js";
import { coalesced, follow } from "./live.js";
import { showPending } from "./pending.js";

const charts = {
  rates: new LineChart(byId("rates"), amount),
  waits: new LineChart(byId("waits"), durationText),
  queues: new LineChart(byId("queues"), count),
  reasons: new LineChart(byId("reasons"), count),
  used: new LineChart(byId("used"), percent),
};

function period() {
  const length = Number(byId("period").value);
  if (!length || !page.until) return { from: page.from, to: page.to };
  const end = Date.parse(page.to || page.until);
  return { from: new Date(end - length * 1000).toISOString(), to: page.to };
}

function draw({ points, stepS }) {
  const rate = (field) => (point) => point[field] / stepS;
  charts.rates.show(points, [
    { name: "observed", of: rate("observed") },
    { name: "bound", of: rate("bound") },
    { name: "rejected", of: rate("rejected") },
    { name: "failed", of: rate("failed") },
    { name: "preempted", of: rate("preempted") },
  ].filter(({ of }) => points.some((point) => of(point) > 0)));
  charts.waits.show(points, [
    { name: "p50", of: (point) => point.waitP50S },
    { name: "p99", of: (point) => point.waitP99S },
  ].filter(({ of }) => points.some((point) => of(point) !== null)));
  charts.queues.show(points, namedSeries(points, (point) => point.queues));
  charts.reasons.show(points, namedSeries(points, (point) => point.pendingByPlugin));
  charts.used.show(points, namedSeries(points, (point) => point.used));
}

function total(points, field) {
  return points.reduce((sum, point) => sum + point[field], 0).toLocaleString("en");
}

function drawFigures(points) {
  const last = points.at(-1);
  const pending = Object.values(last.queues).reduce((sum, pods) => sum + pods, 0);
  const waits = points.map((point) => point.waitP99S).filter((wait) => wait !== null);
  const values = {
    nodes: last.nodes.toLocaleString("en"),
    pending: pending.toLocaleString("en"),
    bound: total(points, "bound"),
    rejected: total(points, "rejected"),
    slowest: waits.length ? durationText(Math.max(...waits)) : "–",
  };
  for (const [name, value] of Object.entries(values)) byId(`figure-${name}`).textContent = value;
}

let shownSeq = null;

async function refresh() {
  const answer = await fetchAnswer("/api/v1/overview", period());
  const empty = !answer.points.length;
  byId("empty").hidden = !empty;
  byId("charts").hidden = empty;
  if (!empty) {
    drawFigures(answer.points);
    draw(answer);
  }
  byId("trouble").replaceChildren();
  shownSeq = answer.indexedSeq;
}

/** What has no answer is not shown, once it is known that there is none. */
const refreshSoon = coalesced(async () => {
  const overview = byId("overview");
  await showing(byId("trouble"), refresh);
  const answered = shownSeq !== null;
  overview.hidden = !answered;
  if (answered) await showing(byId("pending-trouble"), showPending);
  overview.setAttribute("aria-busy", "false");
  if (answered) overview.dataset.seq = shownSeq;
});

byId("period").addEventListener("change", refreshSoon);
refreshSoon();
follow(refreshSoon, ({ at }) => { page.until = at ?? page.until; });
