// The timeline of a pod as SVG: spans in lanes, and arrows from cause to effect.

import {
  byId, durationText, fetchAnswer, notice, page, perFrame, roomForLabels, shape, showing, withMoment,
} from "./dom.js";
import { LANES, buildTimeline, crowded, timeScale } from "./spans.js";

const LANE_PX = 46;
const BAR_PX = 20;
const LEFT_PX = 104;
const RIGHT_PX = 24;
const TOP_PX = 26;
const CHARACTER_PX = 6.6;
const MIN_TICK_PX = 78;
const MIN_WIDTH_PX = 480;

const place = byId("timeline");
let shown = null;

const middle = (row) => TOP_PX + row * LANE_PX + LANE_PX / 2;

function choose(entry) {
  for (const node of document.querySelectorAll("main .chosen")) node.classList.remove("chosen");
  for (const node of place.querySelectorAll(`[data-at="${entry}"]`)) node.classList.add("chosen");
  const row = byId(`entry-${entry}`);
  row?.classList.add("chosen");
  row?.scrollIntoView({ block: "nearest" });
}

function fitting(text, width) {
  const room = Math.floor((width - 8) / CHARACTER_PX);
  if (room < 3) return "";
  return text.length > room ? `${text.slice(0, room - 1)}…` : text;
}

/** Positions of lanes and times in a drawing of one width. */
class Plan {
  constructor({ spans, events, times }, width, even) {
    const used = new Set([...spans, ...events].map((item) => item.lane));
    this.lanes = LANES.map((_, lane) => lane).filter((lane) => used.has(lane));
    this.scale = timeScale(times, even);
    this.width = width;
    this.height = TOP_PX + this.lanes.length * LANE_PX;
  }

  x(at) {
    return LEFT_PX + 8 + this.scale.place(at) * (this.width - LEFT_PX - RIGHT_PX - 16);
  }

  y(lane) {
    return middle(this.lanes.indexOf(lane));
  }

  xOf(ms) {
    return this.x(new Date(ms).toISOString());
  }
}

function laneShapes(plan) {
  return plan.lanes.flatMap((lane) => [
    shape("text", { x: 4, y: plan.y(lane) + 4, class: "quiet" }, LANES[lane]),
    shape("line", { class: "axis", x1: LEFT_PX, x2: plan.width - RIGHT_PX, y1: plan.y(lane),
      y2: plan.y(lane) }),
  ]);
}

function tickShapes(plan) {
  const { known } = plan.scale;
  const places = known.map((at) => plan.xOf(at));
  const labelled = roomForLabels(places, MIN_TICK_PX);
  return known.flatMap((at, index) => {
    const left = places[index];
    const line = shape("line", { class: "axis", x1: left, x2: left, y1: TOP_PX, y2: plan.height });
    if (!labelled.has(index)) return [line];
    const last = index > 0 && index === known.length - 1;
    const label = `+${durationText((at - known[0]) / 1000)}`;
    return [line,
      shape("text", { x: last ? plan.width : left, y: 14, class: "quiet",
        "text-anchor": last ? "end" : "middle" }, label)];
  });
}

function spanShapes(span, plan) {
  const x = plan.x(span.begin);
  const width = Math.max(3, plan.x(span.end) - x);
  const y = plan.y(span.lane) - BAR_PX / 2;
  const length = durationText((Date.parse(span.end) - Date.parse(span.begin)) / 1000);
  const because = span.cause ? `; ${span.cause}` : "";
  const text = `${span.kind}, ${length}${span.lasts ? " so far" : ""}${because}`;
  const caption = fitting(`${span.label} ${length}`, width);
  const bar = { x, y, width, height: BAR_PX, rx: 3, class: `span ${span.kind}`,
    "data-at": span.entry, onclick: () => choose(span.entry) };
  return [
    shape("rect", bar, shape("title", {}, text)),
    caption ? shape("text", { class: "caption", x: x + 6, y: y + 14 }, caption) : null,
  ];
}

function eventShape(event, plan) {
  const [x, y] = [plan.x(event.at), plan.y(event.lane)];
  const d = `M${x} ${y - 7}L${x + 7} ${y}L${x} ${y + 7}L${x - 7} ${y}Z`;
  const attributes = { class: `event ${event.tone}`, "data-at": event.entry, d };
  return shape("path", { ...attributes, onclick: () => choose(event.entry) },
    shape("title", {}, event.label));
}

function arrowShape({ from, to }, plan) {
  const [x1, y1] = [plan.x(from.at), plan.y(from.lane)];
  const [x2, y2] = [plan.x(to.begin), plan.y(to.lane)];
  const down = y2 > y1 ? 1 : -1;
  const [begin, end] = [y1 + down * 7, y2 - down * (BAR_PX / 2 + 1)];
  const d = `M${x1} ${begin}C${x1 - 16} ${begin + down * 8} ${x2 - 16} ${end - down * 8} ${x2} ${end}`;
  return shape("path", { class: "arrow", "marker-end": "url(#arrow-head)", d });
}

function arrowHead() {
  const marker = shape("marker", { id: "arrow-head", viewBox: "0 0 8 8", refX: 7, refY: 4,
    markerWidth: 7, markerHeight: 7, orient: "auto" });
  marker.append(shape("path", { class: "arrow-head", d: "M0 0L8 4L0 8Z" }));
  return shape("defs", {}, marker);
}

function draw() {
  const { spans, events, arrows } = shown;
  const width = Math.max(MIN_WIDTH_PX, place.clientWidth);
  const plan = new Plan(shown, width, byId("scale").value === "even");
  const label = `Timeline of ${spans.length} spans and ${events.length} events, listed below`;
  place.replaceChildren(shape("svg",
    { viewBox: `0 0 ${width} ${plan.height}`, height: plan.height, role: "img", "aria-label": label },
    arrowHead(), tickShapes(plan), laneShapes(plan),
    spans.flatMap((span) => spanShapes(span, plan)),
    arrows.map((arrow) => arrowShape(arrow, plan)),
    events.map((event) => eventShape(event, plan))));
}

async function load() {
  const { pods, spans } = await fetchAnswer(withMoment(page.source));
  place.setAttribute("aria-busy", "false");
  const entries = pods.at(-1)?.entries ?? [];
  if (!entries.length) {
    place.replaceChildren(notice("No events", "Nothing is recorded about this pod at this time."));
    return;
  }
  const until = page.until || entries.at(-1).at;
  const times = [...entries.map((entry) => entry.at), ...spans.map((span) => span.end ?? until)];
  shown = { ...buildTimeline(entries, spans, until), times };
  byId("scale").value = crowded(times) ? "even" : "true";
  byId("scale").addEventListener("change", draw);
  new ResizeObserver(perFrame(draw)).observe(place);
  draw();
  for (const row of document.querySelectorAll("tr[data-entry]")) {
    row.addEventListener("click", () => choose(Number(row.dataset.entry)));
  }
}

showing(place, load);
