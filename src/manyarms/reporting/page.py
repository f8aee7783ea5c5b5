"""The frame of a page that opens offline: its style, and the lines of script that follow the pointer."""

from __future__ import annotations

from html import escape

_STYLE = """
:root {
  color-scheme: light dark; --paper: #fff; --card: #f7f8fa; --ink: #16191d; --soft: #5c6570; --faint: #8a939e;
  --line: #e4e7eb; --c0: #2b66d9; --c1: #dd7a12; --c2: #14917f; --c3: #8a5cd1; --c4: #c8466f; --c5: #8b95a1;
  --c6: #94762f;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --paper: #101317; --card: #181c22; --ink: #e8ebef; --soft: #a3acb7; --faint: #77818d; --line: #2a3038;
    --c0: #6c9cff; --c1: #f0a04b; --c2: #43c1ad; --c3: #b493ee; --c4: #ec7d9f; --c5: #8691a0; --c6: #cbaa5f;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums; -webkit-text-size-adjust: 100%;
}
main { max-width: 1040px; margin: 0 auto; padding: 44px 24px 64px; }
h1 { font-size: 26px; line-height: 1.2; letter-spacing: -.01em; margin: 0 0 6px; overflow-wrap: anywhere; }
h2 { font-size: 17px; letter-spacing: -.005em; margin: 52px 0 4px; }
h2 + .grid, h2 + .scroll, h2 + dl, h2 + .legend, h2 + .films { margin-top: 14px; }
p { margin: 0; }
a { color: var(--c0); }
.soft, .note { color: var(--soft); }
.note { font-size: 13px; margin-bottom: 12px; }
.head {
  display: grid; grid-template-columns: minmax(300px, 1.15fr) 1fr; gap: 28px 48px; margin-top: 32px;
  padding: 26px 0; border: solid var(--line); border-width: 1px 0; align-items: center;
}
.label { font-size: 13px; color: var(--soft); }
.rate {
  font-size: 54px; line-height: 1.1; font-weight: 650; letter-spacing: -.03em; margin: 2px 0 8px;
  white-space: nowrap;
}
.rate .was { color: var(--faint); font-weight: 450; }
.rate .to { color: var(--faint); font-weight: 400; padding: 0 .18em; font-size: .72em; }
.facts { display: grid; grid-template-columns: 1fr 1fr; gap: 18px 28px; margin: 0; }
.facts dt { font-size: 13px; color: var(--soft); }
.facts dd { margin: 0; font-size: 21px; line-height: 1.3; font-weight: 550; letter-spacing: -.01em; }
.facts small { font-size: 13px; font-weight: 400; color: var(--soft); letter-spacing: 0; }
.chart {
  display: grid; grid-template-columns: auto 1fr; grid-template-rows: var(--tall, 150px) 20px; column-gap: 8px;
  font-size: 11.5px; color: var(--faint);
}
.big { --tall: 280px; font-size: 12px; }
.mid { --tall: 200px; }
.ys { position: relative; width: 38px; }
.ys span { position: absolute; right: 0; transform: translateY(-50%); white-space: nowrap; line-height: 1; }
.xs { position: relative; grid-column: 2; height: 20px; }
.xs span { position: absolute; top: 6px; transform: translateX(-50%); line-height: 1; white-space: nowrap; }
.plot { position: relative; touch-action: pan-y; min-width: 0; }
.plot svg { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible; }
.plot path { fill: none; vector-effect: non-scaling-stroke; stroke-linejoin: round; stroke-linecap: round; }
.plot .rules { stroke: var(--line); stroke-width: 1; shape-rendering: crispEdges; }
.line { stroke-width: 1.75; }
.plot .pale { stroke-width: 1; opacity: .3; }
.join { stroke-width: 1.25; opacity: .55; }
.whisker { stroke-width: 1.5; opacity: .5; }
.dot { stroke-width: 7; }
.many { stroke-width: 4; }
.plot .area { stroke: none; opacity: .85; }
.rule { position: absolute; top: 0; bottom: 0; width: 1px; background: var(--faint); pointer-events: none; }
.legend {
  display: flex; flex-wrap: wrap; gap: 4px 20px; list-style: none; margin: 0 0 14px; padding: 0;
  font-size: 13px; color: var(--soft);
}
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 7px; }
.legend b { font-weight: 550; color: var(--ink); margin-left: 6px; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(270px, 1fr)); gap: 26px 32px; }
.small header {
  display: flex; justify-content: space-between; gap: 12px; font-size: 13px; margin-bottom: 9px;
  padding-left: 46px;
}
.small h3 { font-size: 13px; font-weight: 550; margin: 0; overflow-wrap: anywhere; }
.small header span { color: var(--soft); white-space: nowrap; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th {
  font-weight: 450; font-size: 13px; color: var(--soft); text-align: right; padding: 0 0 7px 20px;
  white-space: nowrap; vertical-align: bottom;
}
td { text-align: right; padding: 8px 0 8px 20px; border-top: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child {
  text-align: left; padding-left: 0; white-space: normal; overflow-wrap: anywhere; min-width: 110px;
}
td small { color: var(--soft); font-size: 12.5px; margin-left: 8px; }
tr.all td { font-weight: 600; }
tr.all small { font-weight: 400; }
td.range, th.range { width: 30%; min-width: 120px; }
.ends { display: flex; justify-content: space-between; }
.bell { position: relative; display: block; height: 16px; }
.bell svg { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible; }
.bell path { fill: none; vector-effect: non-scaling-stroke; stroke-linecap: round; }
.bell .base { stroke: var(--line); stroke-width: 1; }
.bell .span { stroke: var(--c0); stroke-width: 5; opacity: .28; }
.bell .now { stroke: var(--c0); stroke-width: 9; }
.bell .then { stroke: var(--faint); stroke-width: 7; }
.whole { display: flex; height: 26px; border-radius: 5px; overflow: hidden; margin: 0 0 12px; }
.whole i { display: block; min-width: 1px; opacity: .85; }
.films { display: grid; grid-template-columns: repeat(auto-fill, minmax(230px, 1fr)); gap: 22px; }
figure { margin: 0; }
video { display: block; width: 100%; border-radius: 6px; background: #000; }
figcaption { font-size: 12.5px; color: var(--soft); margin-top: 6px; overflow-wrap: anywhere; }
.files { font-size: 13px; padding-left: 18px; color: var(--soft); overflow-wrap: anywhere; }
.run {
  display: grid; grid-template-columns: max-content 1fr; gap: 5px 24px; margin: 14px 0 0; font-size: 14px;
}
.run dt { color: var(--soft); }
.run dd { margin: 0; overflow-wrap: anywhere; }
code, pre { font: 12.5px/1.55 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { background: var(--card); border-radius: 8px; padding: 16px 18px; margin: 14px 0 0; overflow-x: auto; }
.tip {
  position: absolute; z-index: 9; pointer-events: none; background: var(--paper); color: var(--ink);
  border: 1px solid var(--line); border-radius: 7px; box-shadow: 0 4px 18px rgba(0, 0, 0, .14);
  padding: 7px 10px; font-size: 12.5px; line-height: 1.5; white-space: nowrap;
}
.tip b { font-weight: 550; float: right; margin-left: 18px; }
.tip i { display: inline-block; width: 8px; height: 8px; border-radius: 2px; margin-right: 7px; }
.tip div:first-child { color: var(--soft); }
@media (max-width: 720px) {
  main { padding: 26px 16px 48px; }
  .head { grid-template-columns: 1fr; margin-top: 22px; padding: 20px 0; }
  .rate { font-size: 44px; }
  .big { --tall: 220px; }
  h2 { margin-top: 40px; }
  .wide { display: none; }
  td, th { padding-left: 12px; }
  .run { grid-template-columns: 1fr; gap: 0; }
  .run dd { margin-bottom: 8px; }
  td.range, th.range { display: none; }
  td.rate-then small, td.rate-now small { display: block; margin: 0; }
}
@media print {
  :root { color-scheme: light; --card: #fff; }
  main { max-width: none; padding: 0 12px; }
  body { font-size: 11pt; }
  h2 { break-after: avoid; }
  .small, .chart, tr, figure { break-inside: avoid; }
  .grid { grid-template-columns: repeat(3, 1fr); }
  video, .tip, .rule { display: none; }
  pre { white-space: pre-wrap; padding: 0; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""

_SCRIPT = """
(function () {
  var tip = document.createElement("div"), rule = document.createElement("div");
  tip.className = "tip"; rule.className = "rule"; tip.hidden = rule.hidden = true;
  document.body.appendChild(tip);
  function number(v) {
    var a = Math.abs(v);
    return a && (a < 1e-3 || a >= 1e7) ? v.toExponential(2) : String(+v.toPrecision(a >= 1e4 ? 7 : 4));
  }
  function nearest(points, x) {
    var low = 0, high = points.length - 1;
    while (high - low > 1) { var mid = (low + high) >> 1; if (points[mid][0] < x) low = mid; else high = mid; }
    return x - points[low][0] < points[high][0] - x ? points[low] : points[high];
  }
  function row(parent, text, value, colour) {
    var line = document.createElement("div");
    if (colour !== undefined) {
      var mark = document.createElement("i");
      mark.style.background = "var(--c" + colour + ")"; line.appendChild(mark);
    }
    line.appendChild(document.createTextNode(text));
    if (value) { var b = document.createElement("b"); b.textContent = value; line.appendChild(b); }
    parent.appendChild(line);
  }
  function hide() { tip.hidden = rule.hidden = true; }
  function show(event) {
    var plot = event.currentTarget, facts = plot.facts || (plot.facts = JSON.parse(plot.dataset.facts));
    var box = plot.getBoundingClientRect(), width = facts.to - facts.from;
    var x = facts.from + (event.clientX - box.left) / box.width * width;
    var found = facts.curves.filter(function (c) { return c[2].length; });
    found = found.map(function (c) { return [c, nearest(c[2], x)]; });
    if (!found.length) return hide();
    var best = found.reduce(function (a, b) { return Math.abs(b[1][0] - x) < Math.abs(a[1][0] - x) ? b : a; })[1][0];
    tip.textContent = "";
    row(tip, "update " + Math.round(best));
    found.forEach(function (f) {
      if (Math.abs(f[1][0] - best) > width * 0.012) return;
      row(tip, f[0][0], facts.percent ? (100 * f[1][1]).toFixed(1) + " %" : number(f[1][1]), f[0][1]);
    });
    var at = (best - facts.from) / width * box.width;
    plot.appendChild(rule); rule.style.left = at + "px"; tip.hidden = rule.hidden = false;
    var left = box.left + at + 14;
    if (left + tip.offsetWidth > document.documentElement.clientWidth - 8) left = box.left + at - tip.offsetWidth - 14;
    tip.style.left = Math.max(8, left) + window.scrollX + "px";
    tip.style.top = box.top + window.scrollY + 8 + "px";
  }
  document.querySelectorAll(".plot").forEach(function (plot) {
    plot.addEventListener("pointermove", show);
    plot.addEventListener("pointerdown", show);
    plot.addEventListener("pointerleave", hide);
  });
})();
"""


def breakable(text: str) -> str:
    """Return a name that may be broken where its words end."""
    return escape(text).replace("_", "_<wbr>").replace("/", "/<wbr>")


def page(title: str, body: str) -> str:
    """Return a whole page, in ASCII: it reads the same whatever encoding it is taken for."""
    text = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><main>\n{body}\n</main><script>{_SCRIPT}</script></body></html>\n"
    )
    return text.encode("ascii", "xmlcharrefreplace").decode()
