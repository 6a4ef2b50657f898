// The matrix of a decision: nodes by plugins, drawn as far as it is visible.

import { byId, element, fetchAnswer, notice, page, perFrame, showing, withMoment } from "./dom.js";
import { MODES, cellValue, differs, filtered, matrixRows, pluginColumns, sorted } from "./matrix.js";

const ROW_PX = 34;
const MARGIN_ROWS = 12;
const CELL_CHARACTERS = 34;
const WIDE_CELL_CHARACTERS = 90;
const FEW_COLUMNS = 4;

const place = byId("matrix");
const view = {
  rows: [],
  shown: [],
  columns: [],
  winner: "",
  sort: { column: "rank", descending: false },
  /** Characters of a reason. */
  most: CELL_CHARACTERS,
};

const mode = () => byId("mode").value;

function visibleColumns() {
  const feasible = view.rows.some((row) => row.node.feasible);
  const plugins = view.columns.filter(
    ({ plugin }) => !byId("differing").checked || differs(view.rows, plugin, mode()));
  return [
    { key: "node", label: "Node", text: true },
    ...(feasible ? [{ key: "rank", label: "Rank" }, { key: "total", label: "Total" }] : []),
    ...plugins.map(({ plugin, weight }) =>
      ({ key: plugin, label: plugin, weight, plugin: true, text: weight === null })),
  ];
}

function shortened(text) {
  return text.length > view.most ? `${text.slice(0, view.most - 1)}…` : text;
}

function cellText(row, { key }) {
  const rejection = row.rejections.get(key);
  if (rejection) return `✕ ${shortened(rejection.reasons.join(", ") || rejection.code)}`;
  const value = cellValue(row, key, mode());
  return value === null || value === undefined ? "–" : String(value);
}

function cell(row, column) {
  if (column.key === "node") return element("th", { scope: "row" }, row.node.name);
  const rejection = row.rejections.get(column.key);
  const text = cellText(row, column);
  if (rejection) {
    const title = `${rejection.plugin}: ${rejection.reasons.join(", ")} (${rejection.code})`;
    return element("td", { class: "refused", title }, text);
  }
  const score = row.scores.get(column.key);
  const title = score &&
    `raw ${score.raw}, normalized ${score.normalized} x weight ${score.weight} = ${score.weighted}`;
  const kinds = [column.text ? "" : "number", text === "–" ? "skipped" : ""];
  return element("td", { class: kinds.join(" ").trim(), title }, text);
}

function tableRow(row, columns, index) {
  const winner = row.node.name === view.winner;
  const attributes = { class: winner ? "winner" : null, "aria-rowindex": index + 2 };
  return element("tr", attributes, columns.map((column) => cell(row, column)));
}

function header(columns) {
  const cells = columns.map((column) => {
    const { key, label, weight, text } = column;
    const active = view.sort.column === key;
    const order = view.sort.descending ? "descending" : "ascending";
    const by = weight && mode() === "weighted" ? element("small", {}, ` ×${weight}`) : null;
    const button = element("button", { type: "button", onclick: () => sortBy(key) }, label, by);
    const attributes = { scope: "col", class: text ? null : "number" };
    return element("th", { ...attributes, "aria-sort": active ? order : null }, button);
  });
  return element("thead", {}, element("tr", { "aria-rowindex": 1 }, cells));
}

function sortBy(key) {
  const { column, descending } = view.sort;
  const first = key !== "node" && key !== "rank";
  view.sort = { column: key, descending: column === key ? !descending : first };
  draw();
  const at = visibleColumns().findIndex((shown) => shown.key === key);
  place.querySelectorAll("thead button")[at]?.focus();
}

function columnWidths(columns) {
  return columns.map((column) => {
    const head = column.label.length + (column.weight ? 3 : 0) + 3;
    const longest = view.rows.reduce((most, row) => Math.max(most, cellText(row, column).length), 0);
    const node = element("col");
    node.style.width = `${Math.max(head, longest) * 0.92 + 2}ch`;
    return node;
  });
}

let drawVisible = () => {};

function draw() {
  const columns = visibleColumns();
  view.most = columns.length > FEW_COLUMNS ? CELL_CHARACTERS : WIDE_CELL_CHARACTERS;
  const filter = {
    text: byId("filter").value, outcome: byId("outcome").value, plugin: byId("plugin").value,
  };
  view.shown = sorted(filtered(view.rows, filter), view.sort, mode());
  byId("count").textContent = `${view.shown.length} of ${view.rows.length} nodes`;
  const body = element("tbody");
  const table = element("table", { "aria-rowcount": view.shown.length + 1 },
    element("caption", { class: "visually-hidden" }, "Answers of each plugin for each node"),
    element("colgroup", {}, columnWidths(columns)), header(columns), body);
  const hidden = view.columns.length - columns.filter((column) => column.plugin).length;
  byId("hidden-columns").textContent = hidden ? `, ${hidden} equal columns hidden` : "";
  const { scrollLeft } = place;
  place.replaceChildren(table);
  if (!view.shown.length) place.append(notice("No node matches", "Change or clear the filters."));
  place.scrollTop = 0;
  place.scrollLeft = scrollLeft;
  drawVisible = () => drawRows(body, columns);
  drawVisible();
}

function spacer(rows, columns) {
  const node = element("td", { colspan: columns.length });
  node.style.height = `${rows * ROW_PX}px`;
  return element("tr", { class: "spacer", "aria-hidden": "true" }, node);
}

function drawRows(body, columns) {
  const first = Math.max(0, Math.floor(place.scrollTop / ROW_PX) - MARGIN_ROWS);
  const count = Math.ceil(place.clientHeight / ROW_PX) + 2 * MARGIN_ROWS;
  const last = Math.min(view.shown.length, first + count);
  const rows = [];
  for (let index = first; index < last; index += 1) {
    rows.push(tableRow(view.shown[index], columns, index));
  }
  const before = first ? [spacer(first, columns)] : [];
  const after = last < view.shown.length ? [spacer(view.shown.length - last, columns)] : [];
  body.replaceChildren(...before, ...rows, ...after);
}

function pluginChoices() {
  const rejecting = new Set(view.rows.flatMap((row) => [...row.rejections.keys()]));
  for (const plugin of [...rejecting].sort()) {
    byId("plugin").append(element("option", { value: plugin }, plugin));
  }
}

async function load() {
  const { explanation, winner } = await fetchAnswer(withMoment(page.source));
  view.rows = matrixRows(explanation.nodes);
  view.columns = pluginColumns(explanation.nodes);
  view.winner = winner;
  place.setAttribute("aria-busy", "false");
  if (!view.rows.length) {
    byId("matrix-bar").hidden = true;
    place.replaceChildren(notice("No node was evaluated",
      "The pod was rejected before the filters ran; the reason is above."));
    return;
  }
  for (const [value, label] of Object.entries(MODES)) {
    byId("mode").append(element("option", { value }, label));
  }
  pluginChoices();
  const feasible = view.rows.some((row) => row.node.feasible);
  if (!feasible) view.sort = { column: "node", descending: false };
  for (const id of ["mode", "outcome", "plugin", "differing"]) {
    byId(id).addEventListener("change", draw);
  }
  byId("filter").addEventListener("input", draw);
  place.addEventListener("scroll", perFrame(() => drawVisible()), { passive: true });
  draw();
}

if (place) showing(place, load);
