// Keeps the place of a reader in a region that is drawn again: focus, open details and scrolling.

const FOCUSABLE = "a, button, summary, [tabindex]";

function habits(region) {
  const all = (selector) => [...region.querySelectorAll(selector)];
  const focus = region.contains(document.activeElement) ? document.activeElement : null;
  return {
    focus: focus && { text: focus.textContent, index: all(FOCUSABLE).indexOf(focus) },
    open: all("details").map((details) => details.open),
    scrolled: all(".scroll").map((box) => [box.scrollLeft, box.scrollTop]),
  };
}

function restore(region, { focus, open, scrolled }) {
  const all = (selector) => [...region.querySelectorAll(selector)];
  all("details").forEach((details, index) => { details.open = open[index] ?? details.open; });
  all(".scroll").forEach((box, index) => box.scrollTo(...(scrolled[index] ?? [0, 0])));
  if (!focus) return;
  const found = all(FOCUSABLE);
  const same = found.find((one) => one.textContent === focus.text) ?? found[focus.index];
  same?.focus({ preventScroll: true });
}

/** Calls `change`, which replaces the content of the region. */
export function keepingPlace(region, change) {
  const before = habits(region);
  change();
  restore(region, before);
}
