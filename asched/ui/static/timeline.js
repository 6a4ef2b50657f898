// The timeline of a pod as SVG: spans in lanes, and arrows from cause to effect.

import { byId, durationText, fetchAnswer, notice, page, perFrame, shape, showing, withMoment } from "./dom.js";
import { LANES, buildTimeline, crowded, timeScale } from "./spans.js";

const LANE_PX = 46;
const BAR_PX = 20;
const LEFT_PX = 96;
const RIGHT_PX = 24;
const TOP_PX = 26;
const CHARACTER_PX = 6.6;
const MIN_TICK_PX = 78;

const place = byId("timeline");
let shown = null;

const middle = (lane) => TOP_PX + lane * LANE_PX + LANE_PX / 2;

function choose(entry) {
  for (const row of document.querySelectorAll("#entries tr")) row.classList.remove("chosen");
  for (const node of place.querySelectorAll(".chosen")) node.classList.remove("chosen");
  for (const node of place.querySelectorAll(`[data-at="${entry}"]`)) node.classList.add("chosen");
  const row = byId(`entry-${shown.pod}-${entry}`);
  row?.classList.add("chosen");
  row?.scrollIntoView({ block: "nearest" });
}

function title(text) {
  return shape("title", {}, text);
}

function fitting(text, width) {
  const room = Math.floor((width - 8) / CHARACTER_PX);
  if (room < 3) return "";
  return text.length > room ? `${text.slice(0, room - 1)}…` : text;
}

function lanes(used, width) {
  return used.map((lane, row) => [
    shape("text", { x: 4, y: middle(row) + 4, class: "quiet" }, LANES[lane]),
    shape("line", { class: "axis", x1: LEFT_PX, x2: width - RIGHT_PX, y1: middle(row), y2: middle(row) }),
  ]);
}

function ticks(scale, x, height) {
  let last = -Infinity;
  return scale.known.map((at) => {
    const left = x(at);
    const label = `+${durationText((at - scale.known[0]) / 1000)}`;
    const line = shape("line", { class: "axis", x1: left, x2: left, y1: TOP_PX, y2: height });
    if (left - last < MIN_TICK_PX) return [line];
    last = left;
    return [line, shape("text", { x: left, y: 14, class: "quiet", "text-anchor": "middle" }, label)];
  });
}

function spanShape(span, rowOf, x) {
  const left = x(Date.parse(span.from));
  const width = Math.max(3, x(Date.parse(span.to)) - left);
  const top = middle(rowOf(span.lane)) - BAR_PX / 2;
  const seconds = (Date.parse(span.to) - Date.parse(span.from)) / 1000;
  const text = `${LANES[span.lane]}: ${span.label}, ${durationText(seconds)}${span.unfinished ? " so far" : ""}`;
  const caption = fitting(`${span.label} ${durationText(seconds)}`.trim(), width);
  const chosen = () => choose(span.entry);
  return [
    shape("rect", { class: `span ${span.kind}`, "data-at": span.entry, x: left, y: top, width,
      height: BAR_PX, rx: 3, onclick: chosen }, title(text)),
    caption ? shape("text", { class: "caption", x: left + 5, y: top + 14 }, caption) : null,
  ];
}

function eventShape(event, rowOf, x) {
  const [left, y] = [x(Date.parse(event.at)), middle(rowOf(event.lane))];
  const path = `M${left} ${y - 7}L${left + 7} ${y}L${left} ${y + 7}L${left - 7} ${y}Z`;
  return shape("path", { class: `event ${event.tone}`, "data-at": event.entry, d: path,
    onclick: () => choose(event.entry) }, title(event.label));
}

function arrowShape(arrow, events, rowOf, x) {
  const from = events[arrow.from];
  const [x1, y1] = [x(Date.parse(from.at)), middle(rowOf(from.lane))];
  const [x2, y2] = [x(Date.parse(arrow.at)), middle(rowOf(arrow.toLane))];
  const down = y2 > y1 ? 1 : -1;
  const [begin, end] = [y1 + down * 7, y2 - down * (BAR_PX / 2 + 1)];
  const bend = (begin + end) / 2;
  return shape("path", { class: "arrow", "marker-end": "url(#head)",
    d: `M${x1} ${begin}C${x1 - 14} ${bend} ${x2 - 14} ${bend} ${x2} ${end}` });
}

function head() {
  const marker = shape("marker", { id: "head", viewBox: "0 0 8 8", refX: 7, refY: 4,
    markerWidth: 7, markerHeight: 7, orient: "auto" });
  marker.append(shape("path", { class: "arrow-head", d: "M0 0L8 4L0 8Z" }));
  return shape("defs", {}, marker);
}

function draw() {
  if (!shown) return;
  const { spans, events, arrows, times } = shown;
  const even = byId("scale").value === "even";
  const scale = timeScale(times, even);
  const width = Math.max(320, place.clientWidth);
  const x = (at) => LEFT_PX + 8 + scale.place(new Date(at).toISOString()) * (width - LEFT_PX - RIGHT_PX - 16);
  const used = LANES.map((_, lane) => lane).filter((lane) =>
    spans.some((span) => span.lane === lane) || events.some((event) => event.lane === lane));
  const rowOf = (lane) => used.indexOf(lane);
  const height = TOP_PX + used.length * LANE_PX;
  const label = `Timeline with ${spans.length} spans and ${events.length} events; the table below lists all`;
  place.replaceChildren(shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label },
    head(), ticks(scale, x, height).flat(), lanes(used, width).flat(),
    spans.map((span) => spanShape(span, rowOf, x)).flat(),
    arrows.map((arrow) => arrowShape(arrow, events, rowOf, x)),
    events.map((event) => eventShape(event, rowOf, x))));
}

function take(pods, until) {
  const pod = Number(byId("uid")?.value ?? pods.length - 1);
  const { entries } = pods[pod];
  const end = entries.at(-1).event === "deleted" ? entries.at(-1).at : until ?? entries.at(-1).at;
  const times = [...entries.map((entry) => entry.at), end];
  shown = { ...buildTimeline(entries, end), times, pod };
  for (const table of document.querySelectorAll("[data-pod]")) {
    table.hidden = table.dataset.pod !== String(pod);
  }
  byId("scale").value = crowded(times) ? "even" : "true";
  draw();
}

async function load() {
  const { pods, until } = await fetchAnswer(withMoment(page.source));
  place.setAttribute("aria-busy", "false");
  if (!pods.some((pod) => pod.entries.length)) {
    place.replaceChildren(notice("No events", "Nothing is recorded about this pod until this time."));
    return;
  }
  take(pods, until);
  byId("scale").addEventListener("change", draw);
  byId("uid")?.addEventListener("change", () => take(pods, until));
  new ResizeObserver(perFrame(draw)).observe(place);
  for (const row of document.querySelectorAll("#entries tbody tr")) {
    row.addEventListener("click", () => choose(Number(row.dataset.entry)));
  }
}

showing(place, load);
