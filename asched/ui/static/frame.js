// What every page has: times in UTC or local, keys, the dialog that lists them.

import { byId, localTimes, writeTime } from "./dom.js";

const PAGES = { o: "/", c: "/cluster", s: "/search", j: "/journal", p: "/plugins",
  q: "/queues", g: "/gangs", e: "/evictions", l: "/lab", d: "/shadow" };
const TABS = ["1", "2", "3"];

function writeTimes() {
  for (const node of document.querySelectorAll("time[datetime]")) writeTime(node);
  byId("times").textContent = localTimes() ? "Times: local" : "Times: UTC";
}

function switchTimes() {
  localStorage.setItem("times", localTimes() ? "utc" : "local");
  writeTimes();
  document.dispatchEvent(new CustomEvent("times"));
}

function typing(target) {
  return target.matches("input:not([type=range]):not([type=checkbox]), select, textarea");
}

let goTo = false;

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
  const going = goTo;
  goTo = false;
  const tabs = document.querySelectorAll(".tabs a");
  if (going && PAGES[event.key]) location.assign(PAGES[event.key]);
  else if (event.key === "g") goTo = true;
  else if (event.key === "/") byId("search").focus();
  else if (event.key === "t") switchTimes();
  else if (event.key === "?") byId("keys").showModal();
  else if (TABS.includes(event.key) && tabs[Number(event.key) - 1]) {
    tabs[Number(event.key) - 1].click();
  } else return;
  event.preventDefault();
}

writeTimes();
byId("times").addEventListener("click", switchTimes);
byId("show-keys").addEventListener("click", () => byId("keys").showModal());
document.addEventListener("keydown", onKey);
