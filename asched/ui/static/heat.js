// The heat map of nodes on a canvas: layout, colours and hit test. No requests here.

import { cssColour } from "./dom.js";

/** Cividis (Nuñez, Anderton, Renslow 2018): equal for all kinds of colour vision. */
const CIVIDIS = [
  [0, 34, 78], [18, 53, 112], [59, 73, 108], [87, 93, 109], [112, 113, 115],
  [138, 134, 120], [165, 156, 116], [195, 179, 105], [225, 204, 85], [254, 232, 56],
];
const SHADES = 64;
const GROUP_LABEL_PX = 18;
const GAP_PX = 10;
const MIN_CELL_PX = 4;
const MAX_CELL_PX = 44;

function shade(part) {
  const at = Math.min(Math.max(part, 0), 1) * (CIVIDIS.length - 1);
  const low = Math.floor(at);
  const high = Math.min(low + 1, CIVIDIS.length - 1);
  const mixed = CIVIDIS[low].map((v, i) => Math.round(v + (CIVIDIS[high][i] - v) * (at - low)));
  return `rgb(${mixed.join()})`;
}

const PALETTE = Array.from({ length: SHADES }, (_, index) => shade(index / (SHADES - 1)));

export function colour(part) {
  return PALETTE[Math.round(Math.min(Math.max(part, 0), 1) * (SHADES - 1))];
}

/** Nodes by the value of a label, in natural order; without a label, one group. */
export function grouped(nodes, label) {
  const groups = new Map();
  for (const node of nodes) {
    const value = label ? node.labels[label] ?? "(without)" : "";
    if (!groups.has(value)) groups.set(value, []);
    groups.get(value).push(node);
  }
  const natural = (a, b) => a[0].localeCompare(b[0], "en", { numeric: true });
  return [...groups].sort(natural).map(([name, members]) => ({ name, members }));
}

/** Cells of the same size for all groups, as large as `height` allows. */
export function layout(groups, width, height) {
  let size = MAX_CELL_PX;
  while (size > MIN_CELL_PX && placed(groups, width, size).height > height) size -= 1;
  return placed(groups, width, size);
}

function placed(groups, width, size) {
  const cells = [];
  const titles = [];
  const titled = groups.length > 1 || groups[0]?.name;
  const top = titled ? GROUP_LABEL_PX : 0;
  let x = GAP_PX;
  let y = GAP_PX;
  let rowHeight = 0;
  for (const { name, members } of groups) {
    const [columns, needed] = blockOf(members.length, name, titled, width, size);
    if (x > GAP_PX && x + needed > width - GAP_PX) {
      x = GAP_PX;
      y += rowHeight + GAP_PX;
      rowHeight = 0;
    }
    if (titled) titles.push({ name, x, y: y + GROUP_LABEL_PX - 6, count: members.length });
    members.forEach((node, index) => {
      const column = index % columns;
      const row = Math.floor(index / columns);
      cells.push({ node, x: x + column * size, y: y + top + row * size });
    });
    rowHeight = Math.max(rowHeight, top + Math.ceil(members.length / columns) * size);
    x += needed + GAP_PX;
  }
  return { cells, titles, size, height: y + rowHeight + GAP_PX };
}

function blockOf(count, name, titled, width, size) {
  const most = Math.max(1, Math.floor((width - 2 * GAP_PX) / size));
  if (!titled) return [most, most * size];
  const columns = Math.min(most, Math.max(1, Math.ceil(Math.sqrt(count * 2.5))));
  return [columns, Math.max(columns * size, `${name} (${count})`.length * 6.5)];
}

/** The cell at a point, or undefined. */
export function cellAt({ cells, size }, x, y) {
  return cells.find((cell) =>
    x >= cell.x && x < cell.x + size && y >= cell.y && y < cell.y + size);
}

/** Draws all cells. `fill` draws one that has the resource; `partOf` is null for another. */
export function draw(canvas, plan, { partOf, fill }, chosen) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(plan.height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(plan.height * ratio);
    canvas.style.height = `${plan.height}px`;
  }
  const brush = canvas.getContext("2d");
  brush.setTransform(ratio, 0, 0, ratio, 0, 0);
  brush.clearRect(0, 0, width, plan.height);
  drawTitles(brush, plan.titles);
  const inner = plan.size - (plan.size > 6 ? 2 : 1);
  const blank = cssColour("--still-soft");
  const cordoned = cssColour("--line-2");
  for (const { node, x, y } of plan.cells) {
    const part = partOf(node);
    brush.fillStyle = part === null ? blank : colour(part);
    if (part === null || !fill) brush.fillRect(x, y, inner, inner);
    else fill(brush, node, x, y, inner);
    if (node.unschedulable) crossOut(brush, x, y, inner, cordoned);
    if (node.name === chosen) outline(brush, x, y, inner);
  }
}

function drawTitles(brush, titles) {
  brush.font = "12px system-ui, sans-serif";
  brush.fillStyle = cssColour("--quiet");
  for (const { name, x, y, count } of titles) brush.fillText(`${name} (${count})`, x, y);
}

function crossOut(brush, x, y, inner, stroke) {
  brush.strokeStyle = stroke;
  brush.lineWidth = Math.max(1, inner / 8);
  brush.beginPath();
  brush.moveTo(x, y + inner);
  brush.lineTo(x + inner, y);
  brush.stroke();
}

function outline(brush, x, y, inner) {
  brush.strokeStyle = cssColour("--ink");
  brush.lineWidth = 2;
  brush.strokeRect(x - 1, y - 1, inner + 2, inner + 2);
}

export function drawLegend(canvas) {
  const brush = canvas.getContext("2d");
  for (let index = 0; index < SHADES; index += 1) {
    brush.fillStyle = PALETTE[index];
    brush.fillRect((index * canvas.width) / SHADES, 0, canvas.width / SHADES + 1, canvas.height);
  }
}
