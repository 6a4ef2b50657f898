// The timeline of a gang or owner as SVG: a row of spans for each pod, and links from cause to effect.

import {
  byId, durationText, fetchAnswer, notice, page, perFrame, roomForLabels, shape, showing, withMoment,
} from "./dom.js";
import { buildRows, pointScale } from "./group_rows.js";
import { crowded } from "./spans.js";

const ROW_PX = 22;
const DENSE_ROW_PX = 15;
const DENSE_FROM = 40;
const RIGHT_PX = 20;
const AXIS_PX = 24;
const CHARACTER_PX = 6.3;
const MAX_NAME_CHARACTERS = 28;
const MIN_TICK_PX = 78;
const MIN_WIDTH_PX = 480;
const GAP_PX = 5;
const BUS_PX = { released: 5, freed: 8, evicts: 11, evicted: 11, rejected: 11, queued: 14 };

const place = byId("timeline");
let answer = null;

/** Positions of rows and times in a drawing of one width. */
class Plan {
  constructor(shown, width, even) {
    const longest = Math.max(8, ...shown.rows.map((row) => row.name.length));
    this.rowPx = shown.rows.length > DENSE_FROM ? DENSE_ROW_PX : ROW_PX;
    this.left = Math.round(Math.min(longest, MAX_NAME_CHARACTERS) * CHARACTER_PX) + 16;
    this.places = shown.places;
    this.scale = pointScale(shown.points, even);
    this.width = width;
    this.height = shown.rows.length * this.rowPx + 4;
  }

  x(point) {
    return this.left + 8 + this.scale.place(point) * (this.width - this.left - RIGHT_PX - 16);
  }

  y(key) {
    return (this.places.get(key) + 0.5) * this.rowPx;
  }
}

function choose(matches) {
  for (const node of document.querySelectorAll("main .chosen")) node.classList.remove("chosen");
  let first = null;
  answer.causes.forEach((link, index) => {
    if (!matches(link, index)) return;
    const row = document.querySelector(`tr[data-cause="${index}"]`);
    row?.classList.add("chosen");
    first ??= row;
  });
  first?.scrollIntoView({ block: "nearest" });
}

const concerns = (key) => (link) => link.toPod === key || link.fromPod === key;

function mark(node) {
  node.classList.add("chosen");
}

function axisShapes(plan) {
  const { marks, first } = plan.scale;
  const places = marks.map((mark) => plan.x(mark));
  const labelled = roomForLabels(places, MIN_TICK_PX);
  return marks.flatMap((mark, index) => {
    if (!labelled.has(index)) return [];
    const left = places[index];
    const label = `+${durationText((Date.parse(mark.at) - first) / 1000)}`;
    const anchor = left > plan.width - MIN_TICK_PX / 2 ? "end" : "middle";
    return [shape("text", { x: left, y: 15, class: "quiet", "text-anchor": anchor }, label)];
  });
}

function rowShapes(row, index, plan) {
  const middle = (index + 0.5) * plan.rowPx;
  const height = plan.rowPx - GAP_PX;
  const name = row.name.length > MAX_NAME_CHARACTERS
    ? `…${row.name.slice(1 - MAX_NAME_CHARACTERS)}` : row.name;
  const back = shape("rect", { x: 0, y: index * plan.rowPx, width: plan.width, height: plan.rowPx,
    class: "row-back", "data-pod": row.key });
  back.addEventListener("click", () => {
    choose(concerns(row.key));
    mark(back);
  });
  return [
    back,
    shape("text", { x: 4, y: middle + 4, class: row.victim ? "row-name quiet" : "row-name",
      "pointer-events": "none" }, name, shape("title", {}, row.key)),
    ...row.bars.map((bar) => barShape(bar, middle - height / 2, height, plan)),
  ];
}

function barShape(bar, y, height, plan) {
  const x = plan.x(bar.begin);
  const width = Math.max(2, plan.x(bar.end) - x);
  const length = durationText((Date.parse(bar.end.at) - Date.parse(bar.begin.at)) / 1000);
  const text = `${bar.kind}, ${length}${bar.lasts ? " so far" : ""}${bar.text ? `; ${bar.text}` : ""}`;
  return shape("rect", { x, y, width, height, rx: 2, class: `span ${bar.kind}`,
    "pointer-events": "none" }, shape("title", {}, text));
}

/** One line from the cause along all effects, with a head at each effect. */
function linkShapes(link, plan) {
  const [from, to] = [plan.x(link.at), plan.x(link.to)];
  const start = plan.y(link.from);
  const ends = link.effects.map((effect) => plan.y(effect.key)).filter(Number.isFinite);
  if (!ends.length) return [];
  // Not before its cause, unless both are the same record.
  const bus = from < to ? Math.max(from, to - BUS_PX[link.kind]) : to - BUS_PX[link.kind];
  const [top, bottom] = [Math.min(start, ...ends), Math.max(start, ...ends)];
  const branches = ends.map((y) => `M${bus} ${y}H${to - 1}`).join("");
  const d = `M${from} ${start}H${bus}M${bus} ${top}V${bottom}${branches}`;
  const count = link.effects.length;
  const label = count > 1 ? `${link.effects[0].text}, and ${count - 1} more` : link.text;
  const line = shape("path", { class: `link ${link.kind}`, d }, shape("title", {}, label));
  const own = new Set(link.effects.map((effect) => effect.cause));
  line.addEventListener("click", () => {
    choose((_, index) => own.has(index));
    mark(line);
  });
  const heads = ends.map((y) => shape("path", { class: "link-head",
    d: `M${to - 4} ${y - 3}L${to + 1} ${y}L${to - 4} ${y + 3}Z` }));
  const source = shape("circle", { class: "link-head", cx: from, cy: start, r: 2.5 });
  return [line, ...heads, source];
}

function draw() {
  const shown = buildRows(answer, byId("links").value);
  const style = getComputedStyle(place);
  const padding = parseFloat(style.paddingLeft) + parseFloat(style.paddingRight);
  const width = Math.max(MIN_WIDTH_PX, Math.floor(place.clientWidth - padding));
  const plan = new Plan(shown, width, byId("scale").value === "even");
  const pods = shown.rows.filter((row) => row.key);
  const label = `Timeline of ${pods.length} pods with ${shown.links.length} causes, listed below`;
  place.replaceChildren(
    shape("svg", { width, height: AXIS_PX, class: "axis-head",
      "aria-hidden": "true" }, axisShapes(plan)),
    shape("svg", { width, height: plan.height, role: "img",
      "aria-label": label },
    shown.rows.flatMap((row, index) => rowShapes(row, index, plan)),
    shown.links.flatMap((link) => linkShapes(link, plan))));
}

async function load() {
  answer = await fetchAnswer(withMoment(page.source));
  place.setAttribute("aria-busy", "false");
  if (!answer.pods.length) {
    place.replaceChildren(notice("No pods", "The group has no pods at this time."));
    return;
  }
  byId("scale").value = crowded(buildRows(answer, "").points.map(({ at }) => at)) ? "even" : "true";
  for (const id of ["scale", "links"]) byId(id).addEventListener("change", draw);
  new ResizeObserver(perFrame(draw)).observe(place);
  draw();
  for (const row of document.querySelectorAll("tr[data-cause]")) {
    row.addEventListener("click", () => {
      const { toPod } = answer.causes[Number(row.dataset.cause)];
      choose((_, index) => index === Number(row.dataset.cause));
      place.querySelector(`[data-pod="${CSS.escape(toPod)}"]`)?.classList.add("chosen");
    });
  }
}

showing(place, load);
