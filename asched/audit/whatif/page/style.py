"""The look of a page, light and dark."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1b2430; --quiet: #5c6877; --rule: #dfe4ea; --shade: #f5f7f9;
  --baseline: #2563c9; --candidate: #c2570c; --recorded: #7a8594;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14181e; --ink: #e4e9ef; --quiet: #9aa6b4; --rule: #303843; --shade: #1c222a;
    --baseline: #74a9ff; --candidate: #ff9f55; --recorded: #8894a3;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 76rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif;
}
h1 { font-size: 1.5rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.5rem 0 .75rem; }
p { margin: .25rem 0; max-width: 60rem; }
.quiet, figcaption, .key { color: var(--quiet); }
.charts { display: grid; gap: 1.5rem; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); }
figure { margin: 0; }
figcaption { font-size: .9rem; margin-bottom: .25rem; }
svg { display: block; width: 100%; height: auto; }
svg text { font-size: 11px; fill: var(--quiet); font-variant-numeric: tabular-nums; }
.up { text-anchor: end; dominant-baseline: central; }
.across { text-anchor: middle; }
.grid { stroke: var(--rule); }
.tick { stroke: var(--quiet); }
.line { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
.line.baseline { stroke: var(--baseline); }
.line.candidate { stroke: var(--candidate); stroke-dasharray: 7 2; }
.line.recorded { stroke: var(--recorded); stroke-width: 1.1; stroke-dasharray: 2 2; }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; font-size: .85rem; }
.key { overflow-wrap: anywhere; }
.swatch {
  display: inline-block; width: 1.5rem; height: 0; margin-right: .4rem; vertical-align: middle;
  border-top: 3px solid;
}
.swatch.baseline { border-color: var(--baseline); }
.swatch.candidate { border-color: var(--candidate); border-top-style: dashed; }
.swatch.recorded { border-color: var(--recorded); border-top-style: dotted; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .9rem .3rem 0; text-align: left; vertical-align: top; }
td { border-top: 1px solid var(--rule); overflow-wrap: anywhere; }
th { color: var(--quiet); font-weight: 600; }
.figures td + td, .figures th + th { text-align: right; padding-left: 1.2rem; white-space: nowrap; }
ul { padding-left: 1.2rem; max-width: 60rem; }
@media print { body { max-width: none; } }
"""
