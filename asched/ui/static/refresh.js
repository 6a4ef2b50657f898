// Keeps the regions of a page that the server rendered up to date: each element with `data-live` is
// replaced by that of the same page, loaded again. The server has escaped its text, and a parsed
// document runs no script.

import { ApiError, byId, showing, writeTime } from "./dom.js";
import { coalesced, follow } from "./live.js";
import { keepingPlace } from "./place.js";

const regions = (root) => new Map(
  [...root.querySelectorAll("[data-live]")].map((region) => [region.dataset.live, region]),
);
const written = new Map();

async function loaded() {
  let response;
  try {
    response = await fetch(location.href, { headers: { Accept: "text/html" } });
  } catch {
    throw new ApiError("The server does not answer. Check that asched ui runs.");
  }
  if (response.redirected) location.reload();  // to the login
  const found = new DOMParser().parseFromString(await response.text(), "text/html");
  if (response.ok) return found;
  const lines = [...found.querySelectorAll("[role=alert] p")].map((line) => line.textContent);
  throw new ApiError(lines.join(" ") || `The server answered ${response.status}.`);
}

/** Whether text of the region is selected: it stays until the reader has copied it. */
function selected(region) {
  const selection = getSelection();
  return !selection.isCollapsed && region.contains(selection.anchorNode);
}

function replace(region, fresh) {
  const name = region.dataset.live;
  if (written.get(name) === fresh.innerHTML || selected(region)) return;
  written.set(name, fresh.innerHTML);
  keepingPlace(region, () => region.replaceChildren(...document.adoptNode(fresh).childNodes));
  for (const node of region.querySelectorAll("time[datetime]")) writeTime(node);
}

async function refresh() {
  const fresh = regions(await loaded());
  const shown = regions(document);
  if ([...fresh.keys()].join() !== [...shown.keys()].join()) {
    location.reload();  // the first session: the page has another structure
    return;
  }
  for (const [name, region] of shown) replace(region, fresh.get(name));
  byId("trouble").replaceChildren();
}

for (const [name, region] of regions(document)) written.set(name, region.innerHTML);

/** Follows the journal; `more` is called with each refresh. */
export function keepFresh(more = async () => {}) {
  follow(coalesced(() => showing(byId("trouble"), async () => {
    await refresh();
    await more();
  })));
}
