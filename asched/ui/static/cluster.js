// The cluster at a time: a heat map of nodes, a slider over the history, and what changed since.

import {
  amountText, byId, element, fetchAnswer, onSchemeChange, page, perFrame, showing, writeTime,
} from "./dom.js";
import { LISTED, showDifference } from "./cluster_difference.js";
import { showNode } from "./cluster_node.js";
import { choiceOf, devicesText, drawDevices, driverOf, totalDevices } from "./devices.js";
import { cellAt, draw, drawLegend, grouped, layout } from "./heat.js";
import { coalesced, follow } from "./live.js";
import { keepingPlace } from "./place.js";

const STEPS = 1000;
const PLAY_STEPS = 200;
const MIN_FRAME_MS = 120;
const MAX_HEIGHT_PX = 560;
const ZONE = "topology.kubernetes.io/zone";

const canvas = byId("heat");
const view = {
  nodes: [], byName: new Map(), plan: null, chosen: "", at: "", seq: 0, pinned: null,
  first: Date.parse(page.first), last: Date.parse(page.last), playing: false, follows: false,
};

const resource = () => byId("resource").value;
const driver = () => driverOf(resource());

/** The devices of the chosen driver; undefined for a resource. */
const devicesOf = (node) => node.devices[driver()];

/** What of the chosen resource or driver a node has, and how much of it is in use. */
function amountsOf(node) {
  if (driver()) return [devicesOf(node)?.allocated ?? 0, devicesOf(node)?.devices ?? 0];
  return [node.requested[resource()] ?? 0, node.allocatable[resource()] ?? 0];
}

/** The share of the node's resource that is in use; null for a node that does not offer it. */
function partOf(node) {
  const [used, total] = amountsOf(node);
  return total ? used / total : null;
}

const redraw = perFrame(() => {
  if (!view.plan) return;
  const fill = driver() &&
    ((brush, node, x, y, size) => drawDevices(brush, devicesOf(node), x, y, size));
  draw(canvas, view.plan, { partOf, fill }, view.chosen);
});

function arrangeNow() {
  const groups = grouped(view.nodes, byId("group").value);
  view.plan = layout(groups, canvas.clientWidth, MAX_HEIGHT_PX);
  redraw();
}

const arrange = perFrame(arrangeNow);

// The answer of a time

function choices(select, values, keep) {
  const before = keep ? select.value : "";
  const known = [...select.options].map((option) => option.value).filter(Boolean);
  const added = values.filter((value) => !known.includes(value));
  select.append(...added.map((value) => element("option", { value }, value)));
  if (before) select.value = before;
}

function offerChoices({ resources, drivers, groupLabels }) {
  const labels = groupLabels.map((label) => label.key);
  const offered = [...resources, ...drivers.map(choiceOf)];
  choices(byId("resource"), offered, true);
  choices(byId("group"), labels, true);
  if (view.nodes.length) return;
  // The first answer with nodes selects what the address has, or the usual grouping.
  const asked = new URLSearchParams(location.search);
  if (offered.includes(asked.get("resource"))) byId("resource").value = asked.get("resource");
  const group = asked.get("group") ?? ZONE;
  if (labels.includes(group)) byId("group").value = group;
}

function sameNodes(nodes) {
  return nodes.length === view.nodes.length &&
    nodes.every((node, index) => node.name === view.nodes[index].name);
}

/** Without any answer there is nothing to choose from. */
function showAnswered(answered) {
  byId("cluster").hidden = !answered;
  byId("when").hidden = !answered;
  byId("newest").hidden = answered;
}

function take(answer) {
  showAnswered(true);
  byId("when").hidden = !answer.seq;  // a journal without records has no time
  offerChoices(answer);
  const same = sameNodes(answer.nodes);
  const { nodes } = answer;
  view.nodes = nodes;
  view.byName = new Map(nodes.map((node) => [node.name, node]));
  view.seq = answer.seq;
  view.at = answer.at;
  byId("cluster").setAttribute("aria-busy", "false");
  byId("none").hidden = nodes.length > 0;
  if (same && view.plan) {
    view.plan.cells.forEach((cell) => { cell.node = view.byName.get(cell.node.name); });
    redraw();
  } else arrangeNow();  // from now on keys choose nodes
  summarize();
}

function useText() {
  if (driver()) {
    const total = totalDevices(view.nodes, driver());
    return `${total.nodes} with ${resource()}: ${devicesText(total)}`;
  }
  const parts = view.nodes.map(partOf).filter((part) => part !== null);
  const mean = parts.length ? parts.reduce((sum, part) => sum + part, 0) / parts.length : 0;
  const full = parts.filter((part) => part >= 0.9).length;
  return `${parts.length} with ${resource()}: ${(mean * 100).toFixed(0)} % requested on average, ` +
    `${full} at 90 % or more`;
}

function summarize() {
  const cordoned = view.nodes.filter((node) => node.unschedulable).length;
  byId("summary").textContent =
    `${view.nodes.length.toLocaleString("en")} nodes, ${useText()}; ${cordoned} cordoned`;
  byId("shares-legend").hidden = Boolean(driver());
  byId("devices-legend").hidden = !driver();
  byId("moment").setAttribute("datetime", view.at);
  writeTime(byId("moment"));
  byId("record").textContent = `record ${view.seq.toLocaleString("en")}`;
  canvas.setAttribute("aria-label", `Heat map. ${byId("summary").textContent}`);
  list();
}

function list() {
  if (!byId("list").open) return;
  const ordered = view.nodes.filter((node) => partOf(node) !== null)
    .sort((a, b) => partOf(b) - partOf(a)).slice(0, LISTED);
  const rows = ordered.map((node) => element("tr", {},
    element("th", { scope: "row" },
      element("button", { type: "button", class: "link", onclick: () => choose(node.name) }, node.name)),
    element("td", { class: "number" }, `${(partOf(node) * 100).toFixed(0)} %`),
    ...amountsOf(node).map((amount) =>
      element("td", { class: "number" }, amountText(driver() ? "devices" : resource(), amount))),
    element("td", { class: "number" }, String(node.pods)),
    element("td", {}, [node.unschedulable ? "cordoned" : "",
      devicesOf(node)?.tainted ? `${devicesOf(node).tainted} tainted` : ""].filter(Boolean).join(", "))));
  keepingPlace(byId("list-rows"), () => byId("list-rows").replaceChildren(...rows));
}

// Time

function timeOf(step) {
  return view.first + ((view.last - view.first) * step) / STEPS;
}

function stepOf(time) {
  const span = view.last - view.first;
  return span > 0 ? Math.round(((time - view.first) / span) * STEPS) : STEPS;
}

let request = null;
let wanted = null;

/** Loads the newest wanted time; times that were wanted meanwhile are dropped. */
async function go(parameters) {
  wanted = parameters;
  if (request) return request;
  request = (async () => {
    while (wanted) {
      const now = wanted;
      wanted = null;
      await showing(byId("trouble"), async () => {
        take(await fetchAnswer("/api/v1/cluster", now));
        byId("trouble").replaceChildren();
      });
    }
  })();
  await request;
  request = null;
  if (!view.at) showAnswered(false);
  byId("cluster").setAttribute("aria-busy", "false");
}

/** Keeps choices in the address; empty values are left out. */
function keep(choices) {
  const url = new URL(location.href);
  for (const [name, value] of Object.entries(choices)) {
    if (value === "" || value === null) url.searchParams.delete(name);
    else url.searchParams.set(name, value);
  }
  history.replaceState(null, "", url);
}

const atEnd = () => Number(byId("slider").value) >= STEPS;

/** Keeps the time in the address, and in the links to the answer, unless the page follows. */
function hold() {
  const seq = atEnd() && view.pinned === null ? null : view.seq;
  keep({ at: null, seq });
  for (const link of [byId("as-json"), byId("as-csv")]) {
    const url = new URL(link.href);
    url.searchParams.delete("at");
    if (seq === null) url.searchParams.delete("seq");
    else url.searchParams.set("seq", seq);
    link.href = url.pathname + url.search;
  }
}

// The newest time

/** A comparison stays, and so does a past time. */
const refresh = coalesced(async () => {
  if (!atEnd() || view.playing || view.pinned !== null) return;
  await go({});
  if (view.chosen) await showChosen();
});

function extend({ at }) {
  if (!at || !atEnd()) return;
  view.last = Date.parse(at);
  if (Number.isNaN(view.first)) view.first = view.last;
  byId("slider").disabled = !(view.last > view.first);
}

/** Follows the journal once the page shows its end. */
function followEnd() {
  view.follows ||= follow(refresh, extend);
}

/** The newest state has no time in the request: the last turn may be later than the page knows. */
function momentOf(step) {
  return step >= STEPS ? {} : { at: new Date(timeOf(step)).toISOString() };
}

async function slide() {
  const step = Number(byId("slider").value);
  byId("slider").setAttribute("aria-valuetext", new Date(timeOf(step)).toISOString());
  await go(momentOf(step));
  hold();
  followEnd();
  if (view.pinned !== null) await compare();
}

function setPlaying(playing) {
  view.playing = playing;
  byId("play").setAttribute("aria-pressed", String(playing));
  byId("play").textContent = playing ? "⏸ Pause" : "▶ Play";
}

async function play() {
  if (view.playing) {
    setPlaying(false);
    return;
  }
  setPlaying(true);
  const slider = byId("slider");
  if (Number(slider.value) >= STEPS) slider.value = 0;
  while (view.playing && Number(slider.value) < STEPS) {
    const next = performance.now() + MIN_FRAME_MS;
    slider.value = Math.min(STEPS, Number(slider.value) + STEPS / PLAY_STEPS);
    await slide();
    await new Promise((done) => { setTimeout(done, Math.max(0, next - performance.now())); });
  }
  setPlaying(false);
}

// A node

async function choose(name) {
  view.chosen = name;
  keep({ node: name });
  redraw();
  byId("node").hidden = false;
  await showChosen();
}

let shownNode = "";

/** Loads the chosen node, and draws it again if it has changed. */
async function showChosen() {
  const name = view.chosen;
  const place = byId("node");
  await showing(place, async () => {
    const path = `/api/v1/cluster/nodes/${encodeURIComponent(name)}`;
    const before = shownNode;
    shownNode = "";  // an error takes its place
    const found = await fetchAnswer(path, { seq: view.seq });
    shownNode = JSON.stringify([found.node, found.pods]);
    if (name !== view.chosen || shownNode === before) return;
    keepingPlace(place, () => showNode(place, found));
  });
}

// What changed between two times

let comparison = 0;

/** Shows the newest comparison, whatever the order of the answers. */
async function compare() {
  comparison += 1;
  const number = comparison;
  const place = byId("difference");
  place.hidden = false;
  await showing(place, async () => {
    const [from, to] = [view.pinned, view.seq].sort((a, b) => a - b);
    const found = await fetchAnswer("/api/v1/cluster/difference", { fromSeq: from, toSeq: to });
    if (number === comparison) showDifference(place, found);
  });
}

function pin(seq = view.seq) {
  view.pinned = view.pinned === null ? seq : null;
  byId("pin").setAttribute("aria-pressed", String(view.pinned !== null));
  byId("pin").textContent = view.pinned === null ? "Compare from here" : `Comparing from record ${view.pinned}`;
  byId("difference").hidden = view.pinned === null;
  keep({ from: view.pinned });
  if (view.pinned !== null) compare();
}

// Pointer and keys

function cellOf(event) {
  return view.plan && cellAt(view.plan, event.offsetX, event.offsetY);
}

function hover(event) {
  const cell = cellOf(event);
  const tip = byId("tip");
  tip.hidden = !cell;
  if (!cell) return;
  const { node } = cell;
  const part = partOf(node);
  let share = `${(part * 100).toFixed(0)} % of ${resource()}`;
  if (part === null) share = `offers no ${resource()}`;
  else if (driver()) share = devicesText(devicesOf(node));
  tip.textContent = `${node.name}: ${share}, ${node.pods} pods${node.unschedulable ? ", cordoned" : ""}`;
  const right = Math.max(0, canvas.clientWidth - tip.offsetWidth - 4);
  tip.style.left = `${Math.min(event.offsetX + 14, right)}px`;
  tip.style.top = `${event.offsetY + 16}px`;
}

function moveChosen(by) {
  const cells = view.plan?.cells ?? [];
  if (!cells.length) return;
  const at = cells.findIndex((cell) => cell.node.name === view.chosen);
  choose(cells[Math.min(Math.max(at + by, 0), cells.length - 1)].node.name);
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const steps = { ArrowLeft: -1, ArrowRight: 1 };
  if (event.target === canvas && steps[event.key]) moveChosen(steps[event.key]);
  else if (event.target.matches("input, select, button, a, summary")) return;
  else if (event.key === " ") play();
  else if (steps[event.key]) {
    byId("slider").value = Number(byId("slider").value) + steps[event.key] * (STEPS / PLAY_STEPS);
    slide();
  } else return;
  event.preventDefault();
}

function listen() {
  byId("resource").addEventListener("change", () => {
    keep({ resource: resource() });
    redraw();
    summarize();
  });
  byId("group").addEventListener("change", () => {
    keep({ group: byId("group").value || "none" });
    arrange();
  });
  byId("slider").addEventListener("input", slide);
  byId("play").addEventListener("click", play);
  byId("pin").addEventListener("click", () => pin());
  byId("list").addEventListener("toggle", list);
  canvas.addEventListener("pointermove", hover);
  canvas.addEventListener("pointerleave", () => { byId("tip").hidden = true; });
  canvas.addEventListener("click", (event) => {
    const cell = cellOf(event);
    if (cell) choose(cell.node.name);
  });
  document.addEventListener("keydown", onKey);
  new ResizeObserver(arrange).observe(canvas.parentElement);
  onSchemeChange(redraw);
}

async function start() {
  listen();
  drawLegend(byId("scale"));
  const asked = new URLSearchParams(location.search);
  await go({ at: asked.get("at"), seq: asked.get("seq") });
  byId("slider").disabled = !(view.last > view.first);
  const past = asked.get("at") || asked.get("seq");
  byId("slider").value = past && view.at ? stepOf(Date.parse(view.at)) : STEPS;
  followEnd();
  if (asked.get("node")) choose(asked.get("node"));
  if (/^[0-9]+$/.test(asked.get("from") ?? "")) pin(Number(asked.get("from")));
}

start();
