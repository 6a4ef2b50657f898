// The progress of a run, until there is a result.

import { byId, fetchAnswer, page, showing } from "./dom.js";

const INTERVAL_MS = 400;
const ACTIVE = ["waiting", "running"];

function show({ state, activity, done, total }) {
  const bar = byId("bar");
  const share = total ? done / total : 0;
  if (total) bar.value = share;
  else bar.removeAttribute("value");
  const text = state === "waiting" ? "waiting for a worker" : activity || state;
  if (byId("activity").textContent !== text) byId("activity").textContent = text;
  byId("share").textContent = total ? `${Math.floor(share * 100)} %` : "";
}

async function follow() {
  for (;;) {
    const run = await fetchAnswer(`/api/v1/lab/runs/${page.run}`);
    if (!ACTIVE.includes(run.state)) {
      location.reload();
      return;
    }
    show(run);
    await new Promise((done) => { setTimeout(done, INTERVAL_MS); });
  }
}

showing(byId("trouble"), follow);
