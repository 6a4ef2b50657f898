// Line charts by uPlot with the colours of the page. A chart follows its box and the colour scheme.

import uPlot from "./vendor/uplot/uPlot.esm.js";
import { cssColour, element, localTimes, onSchemeChange, timeText } from "./dom.js";

const HEIGHT_PX = 190;
const LINES = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--still"];
const DASHES = [[], [6, 3], [2, 2], [10, 3, 2, 3], [4, 4], []];
const MAX_LINES = LINES.length;
/** Steps between the marks of an axis on which only whole numbers make sense. */
const WHOLE_STEPS = Array.from({ length: 16 }, (_, exponent) => [1, 2, 5].map((digit) => digit * 10 ** exponent)).flat();

const WHOLE = [1, 2, 5].flatMap((one) => Array.from({ length: 10 }, (_, power) => one * 10 ** power))
  .sort((a, b) => a - b);

/** Formats of axes. That of things which are counted has only whole numbers. */
export const amount = (value) => (Number.isInteger(value) ? value.toLocaleString("en") : value.toFixed(1));
export const count = (value) => amount(value);
count.increments = WHOLE;
export const percent = (share) => `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;

/** The names with the largest values, at most as many as lines are told apart; the rest is summed. */
export function namedSeries(points, valuesOf) {
  const sums = new Map();
  for (const point of points) {
    for (const [name, value] of Object.entries(valuesOf(point))) {
      sums.set(name, (sums.get(name) ?? 0) + value);
    }
  }
  const names = [...sums].filter(([, sum]) => sum > 0).sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1))
    .map(([name]) => name);
  const own = names.length > MAX_LINES ? names.slice(0, MAX_LINES - 1) : names;
  const lines = own.map((name) => ({ name, of: (point) => valuesOf(point)[name] ?? 0 }));
  const rest = names.slice(own.length);
  if (rest.length) {
    const sum = (point) => rest.reduce((total, name) => total + (valuesOf(point)[name] ?? 0), 0);
    lines.push({ name: `${rest.length} others`, of: sum });
  }
  return lines;
}

/** The part of a second that tells two marks apart: nothing from a second on. */
function fraction(at, step) {
  const digits = Math.min(3, Math.ceil(-Math.log10(step)));
  return step < 1 ? `.${String(at.getUTCMilliseconds()).padStart(3, "0").slice(0, digits)}` : "";
}

/** Marks of the time axis in 24 hours, with the date where it changes. */
function timeMarks(chart, marks, _, __, step) {
  let before = "";
  return marks.map((second) => {
    const at = new Date(second * 1000);
    const iso = timeText(at.toISOString(), undefined, false);
    const day = iso.slice(5, 10) === before ? "" : `\n${iso.slice(0, 10)}`;
    before = iso.slice(5, 10);
    return (step < 60 ? iso.slice(11, 19) + fraction(at, step) : iso.slice(11, 16)) + day;
  });
}

/** Without a cursor the legend shows the last values. */
function showLast(chart) {
  if (chart.cursor.idx === null || chart.cursor.idx === undefined) {
    chart.setLegend({ idx: chart.data[0].length - 1 }, false);
  }
}

function axis(format) {
  const grid = { stroke: cssColour("--rule"), width: 1 };
  return {
    stroke: cssColour("--quiet"), grid, ticks: grid, font: "11px system-ui",
    ...(format?.increments ? { incrs: format.increments } : {}),
    ...(format ? { values: (_, ticks) => ticks.map(format), size: 58 }
      : { values: timeMarks, space: 76 }),
  };
}

/** An axis of numbers instead of times. */
function numberAxis({ format }) {
  return { ...axis(null), values: (_, marks) => marks.map(format), space: 50 };
}

/** Whether all values of all lines are whole numbers. */
function areWhole([, ...lines]) {
  return lines.every((values) => values.every((value) => value === null || Number.isInteger(value)));
}

function options(width, lines, format, { x, stepped, shown }) {
  const zone = localTimes() ? {} : { tzDate: (s) => uPlot.tzDate(new Date(s * 1000), "Etc/UTC") };
  const at = (_, value) => (value === null ? "–" : timeText(new Date(value * 1000).toISOString(), undefined, false));
  const value = (_, shown) => (shown === null || shown === undefined ? "–" : format(shown));
  return {
    width, height: HEIGHT_PX, ...zone, padding: [10, 34, 0, 0],
    hooks: { ready: [showLast], setCursor: [showLast], setData: [showLast] },
    cursor: { sync: { key: x ? x.name : "overview" }, points: { size: 6 } },
    scales: { ...(x ? { x: { time: false } } : {}), y: { range: (_, low, high) => [0, high > 0 ? high * 1.08 : 1] } },
    axes: [x ? numberAxis(x) : axis(null), { ...axis(format), ...(shown.whole ? { incrs: WHOLE_STEPS } : {}) }],
    series: [
      x ? { label: x.name, value: (_, shown) => (shown === null ? "–" : x.format(shown)) }
        : { label: "Time", value: at },
      ...lines.map(({ name }, index) => ({
        label: name, value, stroke: cssColour(LINES[index]), width: 1.6, dash: DASHES[index],
        points: { size: 4 }, spanGaps: false,
        ...(stepped ? { paths: uPlot.paths.stepped({ align: 1 }) } : {}),
      })),
    ],
  };
}

/** A chart in `place` that `show(points, lines)` fills. `format` writes a value of its axis.
 *  Points have a time `at`, or a number `x` on an axis with the given name and format. With
 *  `stepped`, a value holds until the next point. */
export class LineChart {
  constructor(place, format, x = null, stepped = false) {
    this.place = place;
    this.stepped = stepped;
    this.format = format;
    this.x = x;
    this.chart = null;
    this.shown = null;
    new ResizeObserver(() => this.resize()).observe(place);
    const again = () => this.redraw();
    onSchemeChange(again);
    document.addEventListener("times", again);
  }

  show(points, lines) {
    const names = lines.map(({ name }) => name).join("\n");
    const data = [
      points.map((point) => (this.x ? point.x : Date.parse(point.at) / 1000)),
      ...lines.map(({ of }) => points.map((point) => of(point) ?? null)),
    ];
    const whole = areWhole(data);
    const same = this.chart && this.shown.names === names && this.shown.whole === whole;
    this.shown = { names, lines, data, whole };
    if (same) this.chart.setData(data);
    else this.redraw();
    this.describe();
  }

  redraw() {
    if (!this.shown) return;
    this.chart?.destroy();
    this.chart = null;
    const { lines, data } = this.shown;
    const width = this.place.clientWidth;
    if (!lines.length) {
      this.place.replaceChildren(element("p", { class: "notice" }, "Nothing in this period"));
      return;
    }
    this.place.replaceChildren();
    this.chart = new uPlot(options(width, lines, this.format, this), data, this.place);
    this.describe();
  }

  /** The last and the highest value of each line, for readers who do not see the chart. */
  describe() {
    const { lines, data } = this.shown;
    const parts = lines.map(({ name }, index) => {
      const values = data[index + 1].filter((value) => value !== null);
      if (!values.length) return `${name}: none`;
      const last = this.format(values.at(-1));
      return `${name}: last ${last}, highest ${this.format(Math.max(...values))}`;
    });
    this.place.querySelector("canvas")?.setAttribute("role", "img");
    this.place.querySelector("canvas")?.setAttribute("aria-label", parts.join("; "));
  }

  resize() {
    const width = this.place.clientWidth;
    if (this.chart && width && width !== this.chart.width) {
      this.chart.setSize({ width, height: HEIGHT_PX });
    }
  }
}
