// The cluster at a time: a heat map of nodes, a slider over the history, and what changed since.

import {
  amountText, byId, element, fetchAnswer, notice, onSchemeChange, page, perFrame, podPath, showing,
  timeElement, withMoment, writeTime,
} from "./dom.js";
import { cellAt, draw, drawLegend, grouped, layout } from "./heat.js";

const STEPS = 1000;
const PLAY_STEPS = 200;
const MIN_FRAME_MS = 120;
const MAX_HEIGHT_PX = 560;
const LISTED = 25;
const ZONE = "topology.kubernetes.io/zone";

const canvas = byId("heat");
const view = {
  nodes: [], byName: new Map(), plan: null, chosen: "", at: "", seq: 0, pinned: null,
  first: Date.parse(page.first), last: Date.parse(page.last), playing: false,
};

const resource = () => byId("resource").value;

/** The requested share of the node's resource; null for a node that does not offer it. */
function partOf(node) {
  const total = node.allocatable[resource()];
  return total ? (node.requested[resource()] ?? 0) / total : null;
}

const redraw = perFrame(() => {
  if (!view.plan) return;
  draw(canvas, view.plan, partOf, view.chosen);
});

const arrange = perFrame(() => {
  const groups = grouped(view.nodes, byId("group").value);
  view.plan = layout(groups, canvas.clientWidth, MAX_HEIGHT_PX);
  redraw();
});

// The answer of a time

function choices(select, values, keep) {
  const before = keep ? select.value : "";
  const known = [...select.options].map((option) => option.value).filter(Boolean);
  const added = values.filter((value) => !known.includes(value));
  select.append(...added.map((value) => element("option", { value }, value)));
  if (before) select.value = before;
}

function offerChoices({ resources, groupLabels }) {
  const labels = groupLabels.map((label) => label.key);
  choices(byId("resource"), resources, true);
  choices(byId("group"), labels, true);
  if (view.nodes.length) return;
  // The first answer with nodes selects what the address has, or the usual grouping.
  const asked = new URLSearchParams(location.search);
  if (resources.includes(asked.get("resource"))) byId("resource").value = asked.get("resource");
  const group = asked.get("group") ?? ZONE;
  if (labels.includes(group)) byId("group").value = group;
}

function sameNodes(nodes) {
  return nodes.length === view.nodes.length &&
    nodes.every((node, index) => node.name === view.nodes[index].name);
}

function take(answer) {
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
  } else arrange();
  summarize();
}

function summarize() {
  const parts = view.nodes.map(partOf).filter((part) => part !== null);
  const mean = parts.length ? parts.reduce((sum, part) => sum + part, 0) / parts.length : 0;
  const full = parts.filter((part) => part >= 0.9).length;
  const cordoned = view.nodes.filter((node) => node.unschedulable).length;
  byId("summary").textContent = `${view.nodes.length.toLocaleString("en")} nodes, ${parts.length} with ` +
    `${resource()}: ${(mean * 100).toFixed(0)} % requested on average, ${full} at 90 % or more; ` +
    `${cordoned} cordoned`;
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
  byId("list-rows").replaceChildren(...ordered.map((node) => element("tr", {},
    element("th", { scope: "row" },
      element("button", { type: "button", class: "link", onclick: () => choose(node.name) }, node.name)),
    element("td", { class: "number" }, `${(partOf(node) * 100).toFixed(0)} %`),
    element("td", { class: "number" }, amountText(resource(), node.requested[resource()] ?? 0)),
    element("td", { class: "number" }, amountText(resource(), node.allocatable[resource()])),
    element("td", { class: "number" }, String(node.pods)),
    element("td", {}, node.unschedulable ? "cordoned" : ""))));
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

/** Keeps the time in the address, and in the links to the answer. */
function hold() {
  keep({ at: null, seq: view.seq });
  for (const link of [byId("as-json"), byId("as-csv")]) {
    const url = new URL(link.href);
    url.searchParams.delete("at");
    url.searchParams.set("seq", view.seq);
    link.href = url.pathname + url.search;
  }
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
  const place = byId("node");
  place.hidden = false;
  await showing(place, async () => {
    const path = `/api/v1/cluster/nodes/${encodeURIComponent(name)}`;
    showNode(place, await fetchAnswer(path, { seq: view.seq }));
  });
}

function nodeFacts(node) {
  const offered = Object.keys(node.allocatable).filter((name) => node.allocatable[name]);
  const amounts = offered.sort().map((name) => [
    element("dt", {}, name),
    element("dd", {}, `${amountText(name, node.requested[name] ?? 0)} of ` +
      `${amountText(name, node.allocatable[name])}`),
  ]);
  const labels = Object.entries(node.labels).sort().map(([key, value]) =>
    element("li", {}, element("code", {}, value ? `${key}=${value}` : key)));
  const taints = node.taints.map((taint) => element("li", {}, element("code", {}, taint)));
  return [
    element("dl", { class: "facts" }, amounts),
    taints.length ? element("h3", {}, "Taints") : null,
    taints.length ? element("ul", { class: "plain" }, taints) : null,
    labels.length ? element("details", {}, element("summary", {}, `${labels.length} labels`),
      element("ul", { class: "plain" }, labels)) : null,
  ];
}

function podItem({ namespace, name, owner }) {
  const href = withMoment(podPath(namespace, name), { seq: view.seq });
  return element("li", {}, element("a", { href }, `${namespace}/${name}`),
    owner ? element("span", { class: "quiet" }, ` ${owner}`) : null);
}

function showNode(place, { node, pods }) {
  const pill = (text) => element("span", { class: "pill wait" }, text);
  place.replaceChildren(
    element("h2", {}, `Node ${node.name} `, node.unschedulable ? pill("cordoned") : null,
      node.ready ? null : pill("not ready")),
    ...nodeFacts(node).filter(Boolean),
    element("h3", {}, pods.length === 1 ? "1 pod" : `${pods.length} pods`),
    pods.length ? element("ul", { class: "plain", id: "node-pods" }, pods.map(podItem))
      : element("p", { class: "quiet" }, "No pod is on this node."));
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

function section(title, items, itemOf) {
  if (!items.length) return null;
  const rest = items.length - LISTED;
  return element("div", {}, element("h3", {}, `${title}: ${items.length}`),
    element("ul", { class: "plain" }, items.slice(0, LISTED).map((item) => element("li", {}, itemOf(item)))),
    rest > 0 ? element("p", { class: "quiet" }, `and ${rest} more`) : null);
}

function placementText({ namespace, name, before, after }, seq) {
  const href = withMoment(podPath(namespace, name), { seq });
  return [element("a", { href }, `${namespace}/${name}`), `: ${before || "–"} → ${after || "–"}`];
}

function nodeChangeText({ name, requested, pods, changes }) {
  const sign = (amount) => (amount > 0 ? "+" : "");
  const amounts = Object.entries(requested)
    .map(([key, amount]) => `${sign(amount)}${amountText(key, amount)} ${key}`);
  const count = pods && !("pods" in requested) ? [`${sign(pods)}${pods} pods`] : [];
  return `${name}: ${[...amounts, ...count, ...changes].join(", ")}`;
}

function showDifference(place, found) {
  const sections = [
    section("Nodes added", found.nodesAdded, (name) => name),
    section("Nodes removed", found.nodesRemoved, (name) => name),
    section("Pods with another node", found.placements, (pod) => placementText(pod, found.toSeq)),
    section("Nodes changed", found.nodesChanged, nodeChangeText),
  ].filter(Boolean);
  place.replaceChildren(
    element("h2", {}, `From record ${found.fromSeq} to ${found.toSeq}`),
    element("p", { class: "quiet" }, timeElement(found.fromAt), " to ", timeElement(found.toAt)),
    element("p", {}, `${found.podsAdded} pods added, ${found.podsRemoved} removed`),
    ...(sections.length ? sections : [notice("No difference", "Nodes and pods are the same at both times.")]));
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
  const share = part === null ? `offers no ${resource()}` : `${(part * 100).toFixed(0)} % of ${resource()}`;
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
  byId("slider").value = view.at ? stepOf(Date.parse(view.at)) : STEPS;
  if (asked.get("node")) choose(asked.get("node"));
  if (/^[0-9]+$/.test(asked.get("from") ?? "")) pin(Number(asked.get("from")));
}

start();
