// The decision matrix as data: columns, cells, sorting and filtering. No DOM here.

export const MODES = { weighted: "Weighted", normalized: "Normalized", raw: "Raw" };

/** Plugins that score or reject a node, scoring ones first, in the order of the answer. */
export function pluginColumns(nodes) {
  const weights = new Map();
  const rejecting = new Set();
  for (const node of nodes) {
    for (const score of node.scores) weights.set(score.plugin, score.weight);
    for (const rejection of node.rejectedBy) rejecting.add(rejection.plugin);
  }
  const scoring = [...weights].map(([plugin, weight]) => ({ plugin, weight }));
  const others = [...rejecting].filter((plugin) => !weights.has(plugin)).sort();
  return [...scoring, ...others.map((plugin) => ({ plugin, weight: null }))];
}

/** What a plugin answered for each node: a rejection, a score, or neither. */
export function matrixRows(nodes) {
  return nodes.map((node, index) => ({
    index,
    node,
    scores: new Map(node.scores.map((score) => [score.plugin, score])),
    rejections: new Map(node.rejectedBy.map((rejection) => [rejection.plugin, rejection])),
  }));
}

export function cellValue(row, column, mode) {
  if (column === "node") return row.node.name;
  if (column === "total" || column === "rank") return row.node[column];
  return row.scores.get(column)?.[mode] ?? null;
}

/** Whether the plugin rejects a node, or gives two nodes different scores. */
export function differs(rows, column, mode) {
  const scores = new Set();
  for (const row of rows) {
    if (row.rejections.has(column)) return true;
    const score = cellValue(row, column, mode);
    if (score !== null) scores.add(score);
    if (scores.size > 1) return true;
  }
  return false;
}

export function filtered(rows, { text, outcome, plugin }) {
  const wanted = text.trim().toLowerCase();
  return rows.filter((row) => {
    if (outcome && (outcome === "feasible") !== row.node.feasible) return false;
    if (plugin && !row.rejections.has(plugin)) return false;
    return !wanted || matches(row, wanted);
  });
}

function matches(row, wanted) {
  if (row.node.name.toLowerCase().includes(wanted)) return true;
  return row.node.rejectedBy.some(({ reasons }) =>
    reasons.some((reason) => reason.toLowerCase().includes(wanted)));
}

/** Sorted by the column; nodes without a value come last in either direction. */
export function sorted(rows, { column, descending }, mode) {
  const sign = descending ? -1 : 1;
  const compare = (one, other) => {
    const a = sortKey(one, column, mode);
    const b = sortKey(other, column, mode);
    if (a === b) return one.index - other.index;
    if (a === null || b === null) return a === null ? 1 : -1;
    return sign * (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
  };
  return [...rows].sort(compare);
}

function sortKey(row, column, mode) {
  const value = cellValue(row, column, mode);
  if (value !== null || column === "total" || column === "rank") return value;
  return row.rejections.has(column) ? -1 : null;
}
