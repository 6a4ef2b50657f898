// What changed between two times of the cluster.

import { amountText, element, notice, podPath, timeElement, withMoment } from "./dom.js";

export const LISTED = 25;

function section(title, items, itemOf) {
  if (!items.length) return null;
  const rest = items.length - LISTED;
  return element("div", {}, element("h3", {}, `${title}: ${items.length}`),
    element("ul", { class: "plain" }, items.slice(0, LISTED).map((item) => element("li", {}, itemOf(item)))),
    rest > 0 ? element("p", { class: "quiet" }, `and ${rest} more`) : null);
}

function placementText({ namespace, name, before, after }, seq) {
  const href = withMoment(podPath(namespace, name), { seq });
  return [element("a", { href }, `${namespace}/${name}`), `: ${before || "–"} → ${after || "–"}`];
}

function nodeChangeText({ name, requested, pods, changes }) {
  const sign = (amount) => (amount > 0 ? "+" : "");
  const amounts = Object.entries(requested)
    .map(([key, amount]) => `${sign(amount)}${amountText(key, amount)} ${key}`);
  const count = pods && !("pods" in requested) ? [`${sign(pods)}${pods} pods`] : [];
  return `${name}: ${[...amounts, ...count, ...changes].join(", ")}`;
}

export function showDifference(place, found) {
  const sections = [
    section("Nodes added", found.nodesAdded, (name) => name),
    section("Nodes removed", found.nodesRemoved, (name) => name),
    section("Pods with another node", found.placements, (pod) => placementText(pod, found.toSeq)),
    section("Nodes changed", found.nodesChanged, nodeChangeText),
  ].filter(Boolean);
  place.replaceChildren(
    element("h2", {}, `From record ${found.fromSeq} to ${found.toSeq}`),
    element("p", { class: "quiet" }, timeElement(found.fromAt), " to ", timeElement(found.toAt)),
    element("p", {}, `${found.podsAdded} pods added, ${found.podsRemoved} removed`),
    ...(sections.length ? sections : [notice("No difference", "Nodes and pods are the same at both times.")]));
}
