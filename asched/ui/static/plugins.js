// How long the calls of plugins take, as a table: the longest total first.

import { byId, element, fetchAnswer, notice, showing, withMoment } from "./dom.js";
import { keepFresh } from "./refresh.js";

const place = byId("times-table");
const HEADS = [["Plugin"], ["Extension point"], ["Calls", true], ["Median", true], ["Longest", true],
  ["Total", true]];

const rounded = (value) => (value < 10 ? value.toFixed(1) : value.toFixed(0));

function durationText(seconds) {
  if (seconds < 1e-3) return `${rounded(seconds * 1e6)} µs`;
  if (seconds < 1) return `${rounded(seconds * 1e3)} ms`;
  return `${rounded(seconds)} s`;
}

function row(one, most) {
  const number = (text) => element("td", { class: "number" }, text);
  return element("tr", {},
    element("th", { scope: "row" }, one.plugin), element("td", {}, one.extensionPoint),
    number(one.calls.toLocaleString("en")), number(durationText(one.p50S)),
    number(durationText(one.longestS)), number(durationText(one.totalS)),
    element("td", {}, element("meter", { min: 0, max: most, value: one.totalS,
      "aria-label": `${one.plugin}, ${one.extensionPoint}: share of the longest total` })));
}

async function load() {
  const { times, attempts, firstSeq, seq, problem } = await fetchAnswer(withMoment("/api/v1/plugins/times"));
  place.setAttribute("aria-busy", "false");
  byId("times-summary").textContent = `The journal holds no durations: ${attempts} attempts of the`
    + ` records ${firstSeq} to ${seq} were decided again by asched ui, and each call was timed. The first`
    + ` calls start without caches.${problem ? ` Not all: ${problem}.` : ""}`;
  if (!times.length) {
    place.replaceChildren(notice("No attempt until then", "Durations appear with the first attempt."));
    return;
  }
  const most = Math.max(...times.map((one) => one.totalS));
  const head = HEADS.map(([text, number]) =>
    element("th", { scope: "col", class: number ? "number" : null }, text));
  head.push(element("th", { scope: "col" }, element("span", { class: "visually-hidden" }, "Share")));
  place.replaceChildren(element("div", { class: "scroll tall", tabindex: 0, role: "region",
    "aria-labelledby": "times-title" },
  element("table", { id: "call-times" }, element("thead", {}, element("tr", {}, head)),
    element("tbody", {}, times.map((one) => row(one, most))))));
}

// The durations are measured once: that takes longer than everything else on the page.
if (place) showing(place, load);
keepFresh();
