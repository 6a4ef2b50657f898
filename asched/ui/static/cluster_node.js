// The details of a node on the cluster page.

import { devicesText } from "./devices.js";
import { amountText, element, podPath, withMoment } from "./dom.js";

function nodeFacts(node) {
  const offered = Object.keys(node.allocatable).filter((name) => node.allocatable[name]);
  const amounts = offered.sort().map((name) => [
    element("dt", {}, name),
    element("dd", {}, `${amountText(name, node.requested[name] ?? 0)} of ` +
      `${amountText(name, node.allocatable[name])}`),
  ]);
  const devices = Object.entries(node.devices).map(([driver, use]) => [
    element("dt", {}, driver), element("dd", {}, devicesText(use)),
  ]);
  const labels = Object.entries(node.labels).sort().map(([key, value]) =>
    element("li", {}, element("code", {}, value ? `${key}=${value}` : key)));
  const taints = node.taints.map((taint) => element("li", {}, element("code", {}, taint)));
  return [
    element("dl", { class: "facts" }, amounts),
    devices.length ? element("h3", {}, "Devices") : null,
    devices.length ? element("dl", { class: "facts", id: "node-devices" }, devices) : null,
    taints.length ? element("h3", {}, "Taints") : null,
    taints.length ? element("ul", { class: "plain" }, taints) : null,
    labels.length ? element("details", {}, element("summary", {}, `${labels.length} labels`),
      element("ul", { class: "plain" }, labels)) : null,
  ];
}

function podItem({ namespace, name, owner }, seq) {
  const href = withMoment(podPath(namespace, name), { seq });
  return element("li", {}, element("a", { href }, `${namespace}/${name}`),
    owner ? element("span", { class: "quiet" }, ` ${owner}`) : null);
}

/** A node with its pods, as of a record. */
export function showNode(place, { node, pods, seq }) {
  const pill = (text) => element("span", { class: "pill wait" }, text);
  place.replaceChildren(
    element("h2", {}, `Node ${node.name} `, node.unschedulable ? pill("cordoned") : null,
      node.ready ? null : pill("not ready")),
    ...nodeFacts(node).filter(Boolean),
    element("h3", {}, pods.length === 1 ? "1 pod" : `${pods.length} pods`),
    pods.length ? element("ul", { class: "plain", id: "node-pods" }, pods.map((pod) => podItem(pod, seq)))
      : element("p", { class: "quiet" }, "No pod is on this node."));
}
