// Rows, links and times of a group's timeline, from the answer of the API. No DOM here.

const IMPORTANT = new Set(["released", "evicts", "evicted", "freed"]);
const EVENTS = "";

const keyOf = (pod) => `${pod.namespace}/${pod.name}`;

/** A row for each pod of the group, in the order of the answer. A name may have had several pods. */
function memberRows(members, until) {
  const keys = members.map(keyOf);
  const alone = new Set(members.map((member) => member.namespace)).size === 1;
  return members.map((member, index) => ({
    key: keys[index],
    name: alone ? member.name : keys[index],
    bars: member.spans.map((span) => ({
      kind: span.kind, begin: span.begin, end: span.end ?? until, lasts: span.end === null,
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
      kind: "ending", begin: eviction.at, end: eviction.endedAt ?? until,
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
    const bundle = found.get(name)
      ?? { kind: link.kind, from, at: link.fromAt, to: link.toAt, effects: [], text: link.text };
    bundle.effects.push({ key: link.toPod, text: link.text, cause: index });
    found.set(name, bundle);
  });
  return [...found.values()];
}

/** What is drawn; `kinds` is "", "important" or "none". */
export function buildRows({ members, evictions, causes, until }, kinds) {
  const rows = [...memberRows(members, until), ...victimRows(evictions, members, until)];
  const known = new Set(rows.map((row) => row.key));
  const wanted = (link) => kinds !== "none" && (kinds === "" || IMPORTANT.has(link.kind));
  const links = bundles(causes, known).filter(wanted);
  if (links.some((link) => link.from === EVENTS)) {
    rows.unshift({ key: EVENTS, name: "Events", bars: [] });
  }
  const places = new Map();
  rows.forEach((row, index) => places.set(row.key, index));
  const times = [
    ...rows.flatMap((row) => row.bars.flatMap((bar) => [bar.begin, bar.end])),
    ...causes.flatMap((link) => [link.fromAt, link.toAt]), until,
  ];
  return { rows, places, links, times };
}
