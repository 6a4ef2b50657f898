// Elements, answers of the API and times. Text always becomes a text node, never markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function shape(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

export const byId = (id) => document.getElementById(id);

/** The parameters of the page, written by the server as attributes of `main`. */
export const page = document.querySelector("main").dataset;

export class ApiError extends Error {}

/** The JSON answer. Throws an ApiError whose message is one line for the user. */
export async function fetchAnswer(path, parameters = {}, signal = undefined) {
  const url = new URL(path, location.origin);
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.set(name, value);
  }
  let response;
  try {
    response = await fetch(url, { signal, headers: { Accept: "application/json" } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer. Check that asched ui runs, then reload.");
  }
  let answer;
  try {
    answer = await response.json();
  } catch {
    throw new ApiError(`The server answered ${response.status} without JSON. Reload the page.`);
  }
  if (!response.ok) {
    const { error, advice } = answer;
    throw new ApiError([error ?? `status ${response.status}`, advice].filter(Boolean).join(": "));
  }
  return answer;
}

/** `?at=` and `?seq=` of the page, which every request and link of it keeps. */
export function moment() {
  const given = new URLSearchParams(location.search);
  return { at: given.get("at"), seq: given.get("seq") };
}

export function withMoment(path, { at, seq } = moment()) {
  const url = new URL(path, location.origin);
  if (at) url.searchParams.set("at", at);
  if (seq) url.searchParams.set("seq", seq);
  return url.pathname + url.search;
}

export function podPath(namespace, name, rest = "") {
  return `/pods/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}${rest}`;
}

export function notice(title, text, kind = "") {
  const role = kind === "error" ? "alert" : "status";
  return element("div", { class: `notice ${kind}`, role }, element("strong", {}, title), text);
}

/** Runs `load`; shows its error in `place` instead of its result. */
export async function showing(place, load) {
  try {
    await load();
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!(error instanceof ApiError)) console.error(error);
    const text = error instanceof ApiError ? error.message : `The page failed: ${error.message}`;
    place.replaceChildren(notice("This cannot be shown", text, "error"));
    place.setAttribute("aria-busy", "false");
  }
}

// Times

const pad = (number, width = 2) => String(number).padStart(width, "0");

export const localTimes = () => localStorage.getItem("times") === "local";

/** "2026-01-31 12:00:00.123 UTC", or the same in the browser's time zone with its offset. */
export function timeText(iso, local = localTimes(), milliseconds = true) {
  const at = new Date(iso);
  if (Number.isNaN(at.getTime())) return String(iso);
  const shown = local ? new Date(at.getTime() - at.getTimezoneOffset() * 60000) : at;
  const text = shown.toISOString().slice(0, milliseconds ? 23 : 19).replace("T", " ");
  return `${text} ${local ? offsetText(at) : "UTC"}`;
}

function offsetText(at) {
  const minutes = -at.getTimezoneOffset();
  const size = Math.abs(minutes);
  return `${minutes < 0 ? "-" : "+"}${pad(Math.floor(size / 60))}:${pad(size % 60)}`;
}

export function timeElement(iso, milliseconds = true) {
  const node = element("time", { datetime: iso, "data-precision": milliseconds ? "ms" : "s" });
  writeTime(node);
  return node;
}

export function writeTime(node) {
  const milliseconds = node.dataset.precision !== "s";
  const iso = node.getAttribute("datetime");
  const text = timeText(iso, localTimes(), milliseconds);
  if (node.textContent !== text) node.textContent = text;
  node.title = timeText(iso, !localTimes(), milliseconds);
}

/** A duration with two significant units at most: "350 ms", "4.2 s", "3 min 20 s", "2 d 4 h". */
export function durationText(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => seconds >= size);
  const [unit, size] = units[first];
  const rest = units[first + 1];
  const whole = Math.floor(seconds / size);
  const left = rest ? Math.floor((seconds - whole * size) / rest[1]) : 0;
  return left ? `${whole} ${unit} ${left} ${rest[0]}` : `${whole} ${unit}`;
}

const SUFFIXES = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];

/** An amount of a resource in its usual unit. cpu is in millicores. */
export function amountText(resource, amount) {
  if (resource === "cpu") return amount % 1000 ? `${amount}m` : String(amount / 1000);
  if (!/memory|storage|hugepages/.test(resource)) return amount.toLocaleString("en");
  let step = 0;
  let value = amount;
  while (Math.abs(value) >= 1024 && step < SUFFIXES.length - 1) {
    value /= 1024;
    step += 1;
  }
  return `${value >= 100 || Number.isInteger(value) ? Math.round(value) : value.toFixed(1)}${SUFFIXES[step]}`;
}

/** Which of the labels at these places have room, in order. The last one always has, and ends at
 *  the right edge. */
export function roomForLabels(places, roomPx) {
  const end = places.length - 1;
  const shown = new Set();
  let next = -Infinity;
  places.forEach((place, index) => {
    if (index < end && (place < next || place > places[end] - roomPx * 1.25)) return;
    shown.add(index);
    next = place + roomPx;
  });
  return shown;
}

/** Calls `act` at most once per frame. */
export function perFrame(act) {
  let planned = false;
  return () => {
    if (planned) return;
    planned = true;
    requestAnimationFrame(() => {
      planned = false;
      act();
    });
  };
}

export function cssColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Calls `act` when the browser changes between light and dark. */
export function onSchemeChange(act) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", act);
}
