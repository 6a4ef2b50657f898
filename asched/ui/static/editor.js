// A text area for YAML with line numbers, marked lines, indentation and completion.

import { element } from "./dom.js";
import { proposals } from "./completion.js";

const AUTOMATIC_FROM = 2;
let editors = 0;

export class Editor {
  /** `schema` is a promise of the JSON schema; `changed` is called after each change. */
  constructor(area, schema, changed) {
    this.area = area;
    this.changed = changed;
    this.schema = null;
    this.items = [];
    this.chosen = -1;
    this.marked = new Map();
    editors += 1;
    const id = `proposals-${editors}`;
    this.gutter = element("pre", { class: "gutter", "aria-hidden": "true" });
    this.list = element("ul", { class: "proposals", id, role: "listbox", "aria-label": "Proposals", hidden: true });
    this.status = element("span", { class: "visually-hidden", role: "status" });
    area.parentElement.prepend(this.gutter);
    area.parentElement.append(this.list, this.status);
    area.setAttribute("aria-autocomplete", "list");
    area.setAttribute("aria-controls", id);
    area.addEventListener("input", () => this.onInput());
    area.addEventListener("keydown", (event) => this.onKey(event));
    area.addEventListener("scroll", () => this.onScroll());
    area.addEventListener("blur", () => this.close());
    area.addEventListener("click", () => this.close());
    this.number();
    this.loading = schema.then((found) => { this.schema = found; }, () => {});
  }

  get text() {
    return this.area.value;
  }

  set text(text) {
    this.area.value = text;
    this.area.scrollTop = 0;
    this.onInput(false);
  }

  /** Marks lines: a map from line numbers to what is wrong. */
  mark(lines) {
    this.marked = lines;
    this.number();
  }

  number() {
    const count = this.text.split("\n").length;
    const lines = Array.from({ length: count }, (_, index) => {
      const problem = this.marked.get(index + 1);
      return element("span", problem ? { class: "marked", title: problem } : {}, `${index + 1}\n`);
    });
    this.gutter.replaceChildren(...lines);
    this.onScroll();
  }

  onScroll() {
    this.gutter.scrollTop = this.area.scrollTop;
  }

  onInput(typed = true) {
    this.number();
    this.changed();
    if (!typed) return;
    const automatic = !this.list.hidden || this.wordLength() >= AUTOMATIC_FROM;
    if (automatic) this.propose(!this.list.hidden && this.chosen >= 0);
  }

  wordLength() {
    return /[\w./-]*$/.exec(this.text.slice(0, this.area.selectionStart))[0].length;
  }

  /** Shows the proposals at the cursor; `choose` chooses the first one. */
  propose(choose) {
    const { selectionStart, selectionEnd } = this.area;
    if (selectionStart !== selectionEnd) return;
    if (!this.schema) {
      if (choose) this.loading.then(() => this.schema && this.propose(choose));
      return;
    }
    const { prefix, items } = proposals(this.schema, this.text, selectionStart);
    const only = items.length === 1 && items[0].label === prefix;
    this.items = only ? [] : items;
    this.prefix = prefix;
    if (!this.items.length) {
      this.close();
      if (choose) this.status.textContent = "No proposals here";
      return;
    }
    this.list.replaceChildren(...this.items.map((item, index) => this.option(item, index)));
    this.list.hidden = false;
    this.choose(choose ? 0 : -1);
    this.move();
    this.status.textContent = `${this.items.length} proposals`;
  }

  option({ label, type, description }, index) {
    const accept = (event) => {
      event.preventDefault();
      this.chosen = index;
      this.accept();
    };
    return element("li", { role: "option", id: `${this.list.id}-${index}`, onmousedown: accept },
      element("span", { class: "label" }, label), element("span", { class: "type" }, type),
      description ? element("span", { class: "about" }, description) : null);
  }

  /** Below the line of the cursor, or above it if there is no room. */
  move() {
    const before = this.text.slice(0, this.area.selectionStart).split("\n");
    const style = getComputedStyle(this.area);
    const line = parseFloat(style.lineHeight);
    const last = before.length * line - this.area.clientHeight + 2 * line;
    this.area.scrollTop = Math.min(Math.max(this.area.scrollTop, last), (before.length - 1) * line);
    const top = before.length * line - this.area.scrollTop + parseFloat(style.paddingTop);
    const low = top + this.list.offsetHeight > this.area.offsetHeight && top > this.list.offsetHeight;
    this.list.style.top = `${low ? top - line - this.list.offsetHeight : top}px`;
    const column = Math.max(0, before.at(-1).length - this.prefix.length);
    this.list.style.left = `min(calc(${this.area.offsetLeft + parseFloat(style.paddingLeft)}px + ${column}ch), calc(100% - 24rem))`;
  }

  choose(index) {
    this.chosen = index;
    for (const [position, option] of [...this.list.children].entries()) {
      option.setAttribute("aria-selected", String(position === index));
    }
    const option = this.list.children[index];
    if (option) {
      this.area.setAttribute("aria-activedescendant", option.id);
      option.scrollIntoView({ block: "nearest" });
    } else this.area.removeAttribute("aria-activedescendant");
  }

  close() {
    this.list.hidden = true;
    this.items = [];
    this.chosen = -1;
    this.area.removeAttribute("aria-activedescendant");
  }

  accept() {
    const item = this.items[this.chosen];
    const end = this.area.selectionStart;
    const { prefix } = this;
    this.close();
    this.area.focus();
    this.area.setSelectionRange(end - prefix.length, end);
    this.insert(item.insert);
    this.close();
  }

  /** Replaces the selection, so that the browser can undo it where it supports that. */
  insert(text) {
    if (document.execCommand("insertText", false, text)) return;
    const { selectionStart, selectionEnd } = this.area;
    this.area.setRangeText(text, selectionStart, selectionEnd, "end");
    this.onInput();
  }

  onKey(event) {
    const open = !this.list.hidden;
    if (event.key === " " && event.ctrlKey) this.propose(true);
    else if (open && event.key === "Escape") this.close();
    else if (open && event.key === "ArrowDown") this.choose((this.chosen + 1) % this.items.length);
    else if (open && event.key === "ArrowUp") {
      this.choose((Math.max(this.chosen, 0) + this.items.length - 1) % this.items.length);
    } else if (open && this.chosen >= 0 && ["Enter", "Tab"].includes(event.key)) this.accept();
    else if (event.key === "Enter" && !event.ctrlKey && !event.metaKey) this.insert(`\n${this.indent()}`);
    else return;
    event.preventDefault();
  }

  /** The indentation of the line after the cursor's. */
  indent() {
    this.close();
    const line = this.text.slice(0, this.area.selectionStart).split("\n").at(-1);
    const own = /^\s*(?:- +)*/.exec(line)[0].length;
    return " ".repeat(own + (/:\s*$/.test(line) ? 2 : 0));
  }
}
