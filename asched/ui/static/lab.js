// The form of the what-if lab: editors, validation while typing, helpers for nodes.

import { byId, element, fetchAnswer, page, showing } from "./dom.js";
import { Editor } from "./editor.js";

const CHECK_AFTER_MS = 350;
const FIELDS = ["from", "to", "plugins", "addNodes", "removeNodes"];
const form = byId("lab-form");
const schemas = {
  configuration: fetchAnswer("/api/v1/config-schema"),
  scenario: fetchAnswer("/api/v1/config-schema", { kind: "scenario" }),
};

let timer = 0;
let asked = null;

function planCheck() {
  clearTimeout(timer);
  timer = setTimeout(check, CHECK_AFTER_MS);
}

const editors = {
  configuration: new Editor(byId("configuration"), schemas.configuration, planCheck),
  scenario: new Editor(byId("scenario"), schemas.scenario, planCheck),
};

const source = () => form.elements.source.value;

function body() {
  const answer = { source: source(), configuration: editors.configuration.text };
  if (source() === "scenario") answer.scenario = editors.scenario.text;
  for (const name of FIELDS) answer[name] = form.elements[name].value;
  return answer;
}

/** Asks the server what is wrong. Only the last question is answered. */
async function check() {
  asked?.abort();
  asked = new AbortController();
  const headers = { "Content-Type": "application/json", "X-Asched-Form-Token": page.token };
  let found;
  try {
    const response = await fetch("/api/v1/lab/check", {
      method: "POST", headers, body: JSON.stringify(body()), signal: asked.signal,
    });
    found = await response.json();
    if (!response.ok) found = { problems: [{ field: "", line: 0, message: found.error }], warnings: [] };
  } catch (error) {
    if (error.name === "AbortError") return;
    found = { problems: [{ field: "", line: 0, message: "The server does not answer." }], warnings: [] };
  }
  show(found);
}

function jumpTo({ field, line }) {
  const target = form.elements[field];
  if (!target) return;
  target.focus();
  if (!line || !editors[field]) return;
  const lines = target.value.split("\n");
  const start = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
  target.setSelectionRange(start, start + (lines[line - 1] ?? "").length);
  target.scrollTop = Math.max(0, (line - 4) * parseFloat(getComputedStyle(target).lineHeight));
}

function problemItem(problem) {
  const { field, line, message } = problem;
  const where = line ? `${field}, line ${line}` : field;
  const go = (event) => {
    event.preventDefault();
    jumpTo(problem);
  };
  return element("li", {}, field
    ? element("button", { type: "button", class: "link", onclick: go }, where) : null,
  field ? ": " : "", message);
}

function show({ problems, warnings }) {
  for (const [field, editor] of Object.entries(editors)) {
    const own = problems.filter((one) => one.field === field && one.line);
    editor.mark(new Map(own.map(({ line, message }) => [line, message])));
    editor.area.setAttribute("aria-invalid", String(problems.some((one) => one.field === field)));
  }
  for (const name of FIELDS) {
    form.elements[name].setAttribute("aria-invalid", String(problems.some((one) => one.field === name)));
  }
  byId("problems").replaceChildren(
    ...problems.map(problemItem),
    ...warnings.map((text) => element("li", { class: "quiet" }, `Without effect: ${text}`)),
  );
  byId("verdict").textContent = problems.length === 1 ? "1 problem"
    : problems.length ? `${problems.length} problems` : "No problems found";
  byId("verdict").className = `pill ${problems.length ? "bad" : "good"}`;
  byId("checked").dataset.checks = Number(byId("checked").dataset.checks ?? 0) + 1;
}

function showSource() {
  for (const part of document.querySelectorAll("[data-for]")) part.hidden = part.dataset.for !== source();
  editors.scenario.number();
}

async function insertRecorded() {
  const end = form.elements.to.value.trim();
  const at = /^\d{1,18}$/.test(end) ? { seq: end } : { at: end };
  const { text } = await fetchAnswer("/api/v1/lab/configuration", at);
  editors.configuration.text = text;
  byId("trouble").replaceChildren();
}

function addNodes() {
  const name = byId("template").value.trim();
  const number = Math.max(1, Number(byId("number").value) || 1);
  if (!name) return;
  const known = form.elements.addNodes;
  known.value = [known.value.trim(), `${name}=${number}`].filter(Boolean).join(", ");
  planCheck();
}

function removeNode() {
  const name = byId("template").value.trim();
  if (!name) return;
  const known = form.elements.removeNodes;
  known.value = [known.value.trim(), name].filter(Boolean).join(", ");
  planCheck();
}

form.addEventListener("change", () => {
  showSource();
  planCheck();
});
form.addEventListener("input", planCheck);
byId("insert").addEventListener("click", () => showing(byId("trouble"), insertRecorded));
byId("clear").addEventListener("click", () => { editors.configuration.text = ""; });
byId("add").addEventListener("click", addNodes);
byId("remove").addEventListener("click", removeNode);
for (const button of document.querySelectorAll("[data-complete]")) {
  button.addEventListener("mousedown", (event) => event.preventDefault());
  button.addEventListener("click", () => {
    const editor = editors[button.dataset.complete];
    editor.area.focus();
    editor.propose(true);
  });
}
showSource();
check();
