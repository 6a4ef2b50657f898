// Deserved, allocated and requested amounts of a queue over time, as a chart and a table.

import {
  amountText, byId, element, fetchAnswer, moment, notice, showing, timeElement,
} from "./dom.js";
import { LineChart } from "./charts.js";
import { keepFresh } from "./refresh.js";

const PERCENT = 100;
const place = byId("shares");
const unit = () => byId("resource").value;
const chart = new LineChart(place, (value) => resourceText(unit(), value), null, true);
let points = [];

/** Cpu in millicores, memory in bytes, others in thousandths. */
function resourceText(resource, value) {
  if (resource === "memory") return amountText(resource, Math.round(value));
  return (value / 1000).toLocaleString("en", { maximumFractionDigits: 2 });
}

function choices(id, values, text = (value) => value) {
  const select = byId(id);
  const chosen = select.value;
  select.replaceChildren(...values.map((value) => element("option", { value }, text(value))));
  if (values.includes(chosen)) select.value = chosen;
}

const nameOf = ({ schedulerName, queue }) => `${schedulerName}\n${queue}`;

function draw() {
  const resource = unit();
  const own = points.filter((point) => nameOf(point) === byId("queue").value);
  const amount = (field) => (point) => point.resources[resource]?.[field] ?? 0;
  chart.show(own, ["deserved", "allocated", "requested"].map((name) => ({ name, of: amount(name) })));
  document.querySelector("#points tbody").replaceChildren(...own.map((point) => element("tr", {},
    element("td", {}, timeElement(point.at)),
    element("td", { class: "number" }, String(point.seq)),
    ...["deserved", "allocated", "requested"].map((name) =>
      element("td", { class: "number" }, resourceText(resource, amount(name)(point)))),
    element("td", { class: "number" }, `${Math.round(point.share * PERCENT)} %`))));
}

async function load() {
  const answer = await fetchAnswer("/api/v1/queues/history", moment());
  points = answer.points;
  place.setAttribute("aria-busy", "false");
  if (!points.length) {
    place.replaceChildren(notice("No session has run until then", "Shares appear with the first batch session."));
    return;
  }
  // The queue that requests most comes first.
  const requested = new Map();
  for (const point of points) {
    const most = Math.max(0, ...Object.values(point.resources).map((one) => one.requested));
    requested.set(nameOf(point), Math.max(most, requested.get(nameOf(point)) ?? 0));
  }
  const names = [...requested].sort((a, b) => b[1] - a[1]).map(([name]) => name);
  const schedulers = new Set(points.map((point) => point.schedulerName));
  choices("queue", names, (name) => name.split("\n").slice(schedulers.size > 1 ? 0 : 1).join(" "));
  choices("resource", [...new Set(points.flatMap((point) => Object.keys(point.resources)))]);
  draw();
}

for (const id of ["queue", "resource"]) byId(id).addEventListener("change", draw);
showing(place, load);
keepFresh(load);
