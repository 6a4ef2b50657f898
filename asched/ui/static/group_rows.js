// Rows, links and times of a group's timeline, from the answer of the API. No DOM here.

const IMPORTANT = new Set(["released", "evicts", "evicted", "freed", "rejected"]);
const EVENTS = "";

const point = (at, seq) => ({ at, seq });
const keyOf = (pod) => `${pod.namespace}/${pod.name}`;

/** A row for each pod of the group, in the order of the answer. A name may have had several pods. */
function memberRows(members, until) {
  const keys = members.map(keyOf);
  const alone = new Set(members.map((member) => member.namespace)).size === 1;
  return members.map((member, index) => ({
    key: keys[index],
    name: alone ? member.name : keys[index],
    bars: member.spans.map((span) => ({
      kind: span.kind, begin: point(span.begin, span.beginSeq),
      end: span.end ? point(span.end, span.endSeq) : until, lasts: span.end === null,
      text: span.node || span.cause,
    })),
  }));
}

/** A row for each pod outside the group that was evicted for it. */
function victimRows(evictions, members, until) {
  const own = new Set(members.map(keyOf));
  const rows = new Map();
  for (const eviction of evictions) {
    const key = keyOf(eviction.victim);
    if (own.has(key)) continue;
    const row = rows.get(key) ?? { key, name: key, victim: true, bars: [] };
    row.bars.push({
      kind: "ending", begin: point(eviction.at, eviction.seq),
      end: eviction.endedAt ? point(eviction.endedAt, eviction.endedSeq) : until,
      lasts: eviction.endedAt === null, text: eviction.rule,
    });
    rows.set(key, row);
  }
  return [...rows.values()];
}

/** Links with one cause and any number of effects. A cause without a row is an event. */
function bundles(causes, known) {
  const found = new Map();
  causes.forEach((link, index) => {
    const from = known.has(link.fromPod) ? link.fromPod : EVENTS;
    const name = [link.kind, from, link.fromSeq, link.toAt, from ? "" : link.text].join("\n");
    const bundle = found.get(name) ?? { kind: link.kind, from, text: link.text, effects: [],
      at: point(link.fromAt, link.fromSeq), to: point(link.toAt, link.toSeq) };
    bundle.effects.push({ key: link.toPod, text: link.text, cause: index });
    found.set(name, bundle);
  });
  return [...found.values()];
}

/** What is drawn; `kinds` is "", "important" or "none". */
export function buildRows({ members, evictions, causes, until: end }, kinds) {
  const until = point(end, Infinity);
  const rows = [...memberRows(members, until), ...victimRows(evictions, members, until)];
  const known = new Set(rows.map((row) => row.key));
  const wanted = (link) => kinds !== "none" && (kinds === "" || IMPORTANT.has(link.kind));
  const links = bundles(causes, known).filter(wanted);
  if (links.some((link) => link.from === EVENTS)) {
    rows.unshift({ key: EVENTS, name: "Events", bars: [] });
  }
  const places = new Map();
  rows.forEach((row, index) => places.set(row.key, index));
  const points = [
    ...rows.flatMap((row) => row.bars.flatMap((bar) => [bar.begin, bar.end])),
    ...links.flatMap((link) => [link.at, link.to]), until,
  ];
  return { rows, places, links, points };
}

/** From points to 0..1: by true time, or in equal steps from one record to the next. `marks` are
 *  all points in order. */
export function pointScale(points, even) {
  const marks = [...new Map(points.map((one) => [one.seq, one])).values()]
    .sort((a, b) => a.seq - b.seq);
  const first = Date.parse(marks[0].at);
  const length = Date.parse(marks.at(-1).at) - first || 1;
  const steps = Math.max(1, marks.length - 1);
  const indexes = new Map(marks.map((one, index) => [one.seq, index]));
  const place = even ? (one) => indexes.get(one.seq) / steps
    : (one) => (Date.parse(one.at) - first) / length;
  return { marks, first, place };
}
