// The overview: figures and charts of a period, followed live.

import {
  byId, durationText, fetchAnswer, page, showing, timeElement,
} from "./dom.js";
import { LineChart, namedSeries } from "./charts.js";
import { showPending } from "./pending.js";

const RELOAD_MS = 2000;
const PERCENT = 100;

const count = (value) => (Number.isInteger(value) ? String(value) : value.toFixed(1));
const percent = (share) => `${(share * PERCENT).toFixed(share < 0.1 ? 1 : 0)} %`;
const charts = {
  rates: new LineChart(byId("rates"), count),
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

async function refresh() {
  const answer = await fetchAnswer("/api/v1/overview", period());
  const empty = !answer.points.length;
  byId("empty").hidden = !empty;
  byId("charts").hidden = empty;
  if (!empty) {
    drawFigures(answer.points);
    draw(answer);
  }
  await showPending();
  byId("overview").setAttribute("aria-busy", "false");
  byId("overview").dataset.seq = answer.indexedSeq;
}

let loading = false;
let stale = false;

/** Refreshes now, or once after the refresh in progress. */
async function refreshSoon() {
  stale = true;
  if (loading) return;
  loading = true;
  while (stale) {
    stale = false;
    await showing(byId("trouble"), refresh);
    await new Promise((done) => { setTimeout(done, RELOAD_MS); });
  }
  loading = false;
}

function showHead({ seq, at, rates, problem }) {
  const perSecond = ["observed", "bound", "rejected"].filter((name) => rates[name])
    .map((name) => `, ${rates[name]} ${name}/s`).join("");
  const live = byId("live");
  live.classList.toggle("on", !problem);
  if (problem) {
    live.textContent = problem;
    return;
  }
  live.replaceChildren(`Record ${seq.toLocaleString("en")}${perSecond}`,
    ...(at ? [", last turn ", timeElement(at)] : []));
}

function follow() {
  if (page.to) return;
  const events = new EventSource("/api/v1/events");
  let known = null;
  events.addEventListener("head", (event) => {
    const head = JSON.parse(event.data);
    page.until = head.at ?? page.until;
    showHead(head);
    if (known !== null && head.seq !== known) refreshSoon();
    known = head.seq;
  });
  events.addEventListener("error", () => {
    byId("live").classList.remove("on");
    byId("live").textContent = "Not connected; trying again";
  });
  addEventListener("pagehide", () => events.close());
}

byId("period").addEventListener("change", refreshSoon);
refreshSoon();
follow();
