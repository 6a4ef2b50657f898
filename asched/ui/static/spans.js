// Lanes, events and arrows of a pod's timeline, from its entries and spans. No DOM here.

import { words } from "./words.js";

export const LANES = ["Cause", "Queue", "Attempt", "Permit", "Binding", "On the node"];
const CAUSE = 0;
const QUEUE = 1;
const ATTEMPT = 2;
const PERMIT = 3;
const BINDING = 4;
const RUNNING = 5;
const LANE_OF_SPAN = { permit: PERMIT, binding: BINDING, running: RUNNING };
const LANE_OF_EVENT = {
  assigned: ATTEMPT, rejected: ATTEMPT, failed: ATTEMPT, extendersCalled: ATTEMPT,
  extenderReplied: ATTEMPT, permit: PERMIT, bound: BINDING, bindFailed: BINDING,
};
const GOOD = new Set(["assigned", "bound"]);
const BAD = new Set([
  "rejected", "failed", "bindFailed", "preempted", "evicted", "evictionFailed", "deleted",
]);

function eventText(entry) {
  const about = entry.node || (entry.by && `by ${entry.by}`) || entry.plugin || "";
  const attempt = entry.attempt ? ` in attempt ${entry.attempt}` : "";
  return `${entry.event}${about ? ` ${about}` : ""}${attempt}`;
}

function tone(event) {
  return (GOOD.has(event) && "good") || (BAD.has(event) && "bad") || "";
}

/** The pod's own events; a move between queues is the begin of a span. */
function ownEvents(entries) {
  return entries
    .map((entry, index) => ({ entry, index }))
    .filter(({ entry }) => entry.event !== "queued")
    .map(({ entry, index }) => ({
      lane: LANE_OF_EVENT[entry.event] ?? CAUSE, label: eventText(entry), at: entry.at,
      seq: entry.seq, tone: tone(entry.event), entry: index,
    }));
}

/** Index of the entry that begins the span. */
function entryOf(span, entries) {
  const wanted = { permit: "assigned", running: "bound" }[span.kind] ?? "queued";
  const same = entries.map((entry, index) => ({ entry, index }))
    .filter(({ entry }) => entry.seq === span.beginSeq);
  return (same.find(({ entry }) => entry.event === wanted) ?? same.at(-1))?.index ?? 0;
}

/** An arrow from what caused each span: an event of the pod with the same record, or one of
 *  another object, which gets a mark in the lane of causes. */
function causes(spans, events) {
  const marks = [];
  const arrows = spans.map((span) => {
    const own = events.filter((event) => event.seq === span.beginSeq && event.lane !== span.lane);
    if (own.length) return { from: own.at(-1), to: span };
    const same = events.some((event) => event.seq === span.beginSeq);
    if (same || !span.cause) return null;
    const mark = { lane: CAUSE, label: span.cause, at: span.begin, seq: span.beginSeq, tone: "",
      entry: span.entry };
    marks.push(mark);
    return { from: mark, to: span };
  });
  return { marks, arrows: arrows.filter(Boolean) };
}

/** What is drawn. A span that lasts reaches to `until`. */
export function buildTimeline(entries, answered, until) {
  const events = ownEvents(entries);
  const spans = answered.map((span) => ({
    ...span,
    lane: LANE_OF_SPAN[span.kind] ?? QUEUE,
    entry: entryOf(span, entries),
    label: span.kind in LANE_OF_SPAN ? span.node || span.cause : words(span.kind),
    end: span.end ?? until,
    lasts: span.end === null,
  }));
  const { marks, arrows } = causes(spans, events);
  return { spans, events: [...events, ...marks], arrows };
}

/** From times to 0..1: by true distance, or in equal steps from one time to the next. */
export function timeScale(times, even) {
  const known = [...new Set(times.map((at) => Date.parse(at)))].sort((a, b) => a - b);
  const first = known[0];
  const length = known.at(-1) - first || 1;
  const steps = Math.max(1, known.length - 1);
  const place = new Map(known.map((at, index) =>
    [at, even ? index / steps : (at - first) / length]));
  return { known, place: (at) => place.get(Date.parse(at)) };
}

const CROWDED = 0.02;

/** Whether times at their true distance would lie on each other. */
export function crowded(times) {
  const { known } = timeScale(times, false);
  const length = known.at(-1) - known[0];
  return known.some((at, index) => index > 0 && at - known[index - 1] < length * CROWDED);
}
