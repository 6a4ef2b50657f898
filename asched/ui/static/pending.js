// The pods that have waited longest, on the overview.

import { byId, durationText, element, fetchAnswer, podPath } from "./dom.js";
import { words } from "./words.js";

const SHOWN = 10;

function row(pod) {
  const name = `${pod.namespace}/${pod.name}`;
  const brief = pod.reason.length > 140 ? `${pod.reason.slice(0, 139)}…` : pod.reason;
  return element("tr", {},
    element("td", {}, element("a", { href: podPath(pod.namespace, pod.name) }, name)),
    element("td", { class: "number" }, durationText(pod.waitedS)),
    element("td", {}, words(pod.state)),
    element("td", { title: pod.reason }, brief || "not tried yet"));
}

export async function showPending() {
  const { pods, total } = await fetchAnswer("/api/v1/pending", { limit: SHOWN });
  byId("pending-trouble").replaceChildren();
  byId("pending-count").textContent = total > pods.length ? `${pods.length} of ${total}` : "";
  byId("pending-none").hidden = pods.length > 0;
  byId("pending").hidden = pods.length === 0;
  byId("pending").querySelector("tbody").replaceChildren(...pods.map(row));
}
