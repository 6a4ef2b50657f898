// The spans, events and arrows of a pod's timeline, from its entries. No DOM here.

export const LANES = ["Cause", "Queue", "Attempt", "Permit", "Binding", "On the node"];
const LANE = Object.fromEntries(LANES.map((name, index) => [name, index]));
const EXTERNAL = new Set(["observed", "changed", "preempted", "evicted", "evictionFailed", "deleted"]);
const GOOD = new Set(["assigned", "bound"]);
const BAD = new Set(["rejected", "failed", "bindFailed", "preempted", "evicted", "evictionFailed"]);

class Builder {
  constructor(entries) {
    this.entries = entries;
    this.spans = [];
    this.events = [];
    this.arrows = [];
    this.open = new Map();
    this.attempt = null;
  }

  begin(lane, kind, label, index) {
    this.end(lane, index);
    this.open.set(lane, { lane, kind, label, from: this.entries[index].at, entry: index });
  }

  end(lane, index) {
    const span = this.open.get(lane);
    if (!span) return;
    this.open.delete(lane);
    this.spans.push({ ...span, to: this.entries[index].at });
  }

  mark(lane, label, index) {
    const { event, at } = this.entries[index];
    const tone = (GOOD.has(event) && "good") || (BAD.has(event) && "bad") || "";
    this.events.push({ lane, label, at, tone, entry: index });
    return this.events.length - 1;
  }

  /** From an event to the begin of a span or to another event, both in the order of causation. */
  arrow(from, toLane, index) {
    this.arrows.push({ from, toLane, at: this.entries[index].at, entry: index });
  }

  queued(entry, index) {
    const cause = this.causeOf(entry, index);
    this.begin(LANE.Queue, `queue-${entry.queue}`, entry.queue, index);
    if (cause !== null) this.arrow(cause, LANE.Queue, index);
  }

  /** The event that moved the pod: its own of the same record, or one of another object. */
  causeOf(entry, index) {
    const own = this.events.findLastIndex((event) => this.entries[event.entry].seq === entry.seq);
    return own >= 0 ? own : this.mark(LANE.Cause, entry.cause, index);
  }

  assigned(entry, index) {
    this.end(LANE.Queue, index);
    const event = this.mark(LANE.Attempt, `attempt ${entry.attempt}: ${entry.node}`, index);
    const waits = entry.permitWaits ?? [];
    const lane = waits.length ? LANE.Permit : LANE.Binding;
    const label = waits.length ? waits.join(", ") : entry.node;
    this.begin(lane, waits.length ? "permit" : "binding", label, index);
    this.arrow(event, lane, index);
  }

  permit(entry, index) {
    const span = this.open.get(LANE.Permit);
    this.end(LANE.Permit, index);
    this.mark(LANE.Permit, `${entry.plugin} ${entry.allowed ? "allowed" : "rejected"}`, index);
    if (span && entry.allowed) this.begin(LANE.Binding, "binding", "", index);
  }

  bound(entry, index) {
    this.end(LANE.Permit, index);
    this.end(LANE.Binding, index);
    const event = this.mark(LANE.Binding, `bound to ${entry.node}`, index);
    this.begin(LANE["On the node"], "running", entry.node, index);
    this.arrow(event, LANE["On the node"], index);
  }

  add(entry, index) {
    const { event } = entry;
    if (event === "queued") this.queued(entry, index);
    else if (event === "assigned") this.assigned(entry, index);
    else if (event === "permit") this.permit(entry, index);
    else if (event === "bound") this.bound(entry, index);
    else if (event === "bindFailed") {
      this.end(LANE.Binding, index);
      this.mark(LANE.Binding, "binding failed", index);
    } else if (EXTERNAL.has(event)) this.external(entry, index);
    else this.mark(LANE.Attempt, entry.attempt ? `${event} (attempt ${entry.attempt})` : event, index);
  }

  external(entry, index) {
    const by = entry.by ? ` by ${entry.by}` : "";
    this.mark(LANE.Cause, `${entry.event}${by}`, index);
    if (entry.event === "observed" && entry.node) {
      this.begin(LANE["On the node"], "running", entry.node, index);
    }
    if (entry.event !== "deleted") return;
    for (const lane of [...this.open.keys()]) this.end(lane, index);
  }
}

/** Spans that are open at the end reach to `until`. */
export function buildTimeline(entries, until) {
  const builder = new Builder(entries);
  entries.forEach((entry, index) => builder.add(entry, index));
  for (const span of builder.open.values()) {
    builder.spans.push({ ...span, to: until, unfinished: true });
  }
  return { spans: builder.spans, events: builder.events, arrows: builder.arrows };
}

/** From times to 0..1: by true distance, or in equal steps from one time to the next. */
export function timeScale(times, even) {
  const known = [...new Set(times.map((at) => Date.parse(at)))].sort((a, b) => a - b);
  const [first, last] = [known[0], known.at(-1)];
  const span = last - first || 1;
  const steps = Math.max(1, known.length - 1);
  const place = new Map(known.map((at, index) => [at, even ? index / steps : (at - first) / span]));
  return { known, place: (at) => place.get(Date.parse(at)) };
}

const CROWDED = 0.02;

/** Whether times at their true distance would lie on each other. */
export function crowded(times) {
  const { known } = timeScale(times, false);
  const span = known.at(-1) - known[0];
  return known.some((at, index) => index > 0 && at - known[index - 1] < span * CROWDED);
}
