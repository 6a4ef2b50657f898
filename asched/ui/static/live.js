// Follows the journal by server-sent events: shows its newest record, and refreshes the page.

import { byId, moment, page, timeElement } from "./dom.js";

const RELOAD_MS = 2000;

/** Calls `load` now, or once more after the call in progress: at most once in RELOAD_MS. */
export function coalesced(load) {
  let loading = false;
  let stale = false;
  return async () => {
    stale = true;
    if (loading) return;
    loading = true;
    while (stale) {
      stale = false;
      await load();
      await new Promise((done) => { setTimeout(done, RELOAD_MS); });
    }
    loading = false;
  };
}

/** Whether the page shows the time of its answer elsewhere. */
const dated = document.querySelector("[data-live=at], #moment") !== null;

function showHead({ seq, at, rates, problem }) {
  const live = byId("live");
  live.classList.toggle("on", !problem);
  if (problem) {
    live.textContent = problem;
    return;
  }
  const perSecond = ["observed", "bound", "rejected"].filter((name) => rates[name])
    .map((name) => `, ${rates[name]} ${name}/s`).join("");
  live.replaceChildren(`Record ${seq.toLocaleString("en")}${perSecond}`,
    ...(at && !dated ? [", last turn ", timeElement(at)] : []));
}

function showStopped(text) {
  byId("live").classList.remove("on");
  byId("live").textContent = text;
}

/** Calls `refresh` when the journal has grown, and `onHead` with each event. A page of a past time
 *  is not followed: the result is whether this one is. Hidden pages close their stream: a browser
 *  opens only six for a server. */
export function follow(refresh, onHead = () => {}) {
  if (page.to || moment().at || moment().seq) return false;
  let events = null;
  let known = null;
  let troubled = false;
  let paused = false;

  function begin() {
    if (events || paused || document.hidden) return;
    events = new EventSource("/api/v1/events");
    events.addEventListener("head", (event) => {
      const head = JSON.parse(event.data);
      showHead(head);
      onHead(head);
      const shown = `${head.seq} ${head.verifiedAt}`;
      if (known !== null && (shown !== known || troubled)) refresh();
      known = shown;
      troubled = Boolean(head.problem);
    });
    events.addEventListener("error", () => {
      troubled = true;
      showStopped("Not connected; trying again");
      // After an answer with an error status the browser does not try again.
      if (events?.readyState === EventSource.CLOSED) {
        end();
        setTimeout(begin, RELOAD_MS);
      }
    });
  }

  function end() {
    events?.close();
    events = null;
  }

  function pause() {
    paused = !paused;
    byId("pause").textContent = paused ? "Follow" : "Pause";
    if (!paused) {
      begin();
      return;
    }
    end();
    showStopped("Paused");
  }

  byId("pause").hidden = false;
  byId("pause").addEventListener("click", pause);
  document.addEventListener("visibilitychange", () => (document.hidden ? end() : begin()));
  addEventListener("pagehide", end);
  addEventListener("pageshow", begin);
  begin();
  return true;
}
