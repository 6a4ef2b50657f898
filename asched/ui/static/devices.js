// Devices of Dynamic Resource Allocation on the cluster page: counts, and how a cell shows them.

import { cssColour } from "./dom.js";
import { colour } from "./heat.js";

const PREFIX = "devices of ";
const MIN_STRIPE_PX = 3;

/** The choice that shows the devices of a driver. */
export const choiceOf = (driver) => PREFIX + driver;

/** The driver of a choice; undefined for a resource. */
export const driverOf = (choice) =>
  (choice.startsWith(PREFIX) ? choice.slice(PREFIX.length) : undefined);

export function devicesText({ devices, allocated, tainted, free }) {
  const rest = tainted ? `, ${tainted} tainted` : "";
  return `${allocated} of ${devices} allocated${rest}, ${free} free`;
}

/** The sum over all nodes with devices of the driver. */
export function totalDevices(nodes, driver) {
  const total = { nodes: 0, devices: 0, allocated: 0, tainted: 0, free: 0 };
  for (const { devices } of nodes) {
    const use = devices[driver];
    if (!use) continue;
    total.nodes += 1;
    for (const name of ["devices", "allocated", "tainted", "free"]) total[name] += use[name];
  }
  return total;
}

/** Fills a cell from below: allocated, free, and tainted with stripes on top. */
export function drawDevices(brush, use, x, y, size) {
  const part = (count) => (size * count) / use.devices;
  const allocated = part(use.allocated);
  const tainted = part(use.tainted);
  brush.fillStyle = colour(0);
  brush.fillRect(x, y, size, size);
  brush.fillStyle = colour(1);
  brush.fillRect(x, y + size - allocated, size, allocated);
  if (!tainted) return;
  brush.fillStyle = cssColour("--still");
  brush.fillRect(x, y, size, tainted);
  brush.fillStyle = cssColour("--paper");
  for (let at = 0; at < tainted; at += MIN_STRIPE_PX) {
    brush.fillRect(x, y + at, size, Math.min(1, tainted - at));
  }
}
