// Curves as reporting/charts.py draws them: a square of SVG that is stretched, every word as HTML.
import { element, mark, number, percent, write } from "./words.js";

const SIDE = 1000, NOISY = 60;
const tip = element("div", "tip"), rule = element("div", "rule");
tip.hidden = true;
let under = null; // the chart under the pointer, and where

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 2.5, 5, 10].map((nice) => nice * power).find((step) => step >= rough * (1 - 1e-9));
}

function ticksBetween(low, high, step) {
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i <= Math.floor(high / step + 1e-9); i++) ticks.push(i * step);
  return ticks;
}

function scaleOf(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) { if (value < low) low = value; if (value > high) high = value; }
  if (low > high) low = high = 0;
  if (high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high))) {
    const room = Math.abs(low) * 0.1 || 1;
    low -= room; high += room;
  }
  if (low > 0 && low < 0.5 * high) low = 0;
  else if (high < 0 && high > 0.5 * low) high = 0;
  const room = 0.06 * (high - low);
  if (low !== 0) low -= room;
  if (high !== 0) high += room;
  return { low, high, ticks: ticksBetween(low, high, niceStep((high - low) / 3)) };
}

const PERCENT = { low: 0, high: 1, ticks: [0, 0.25, 0.5, 0.75, 1] };

function scaleOfSteps(first, last, wanted) {
  if (first === last) return { low: first - 1, high: last + 1, ticks: [first] };
  return { low: first, high: last, ticks: ticksBetween(first, last, Math.max(1, niceStep((last - first) / wanted))) };
}

// What is visible of many points: of each stretch its first, lowest, highest and last.
function thinned(points, buckets = 300) {
  if (points.length <= 4 * buckets) return points;
  const kept = [], size = points.length / buckets;
  for (let b = 0; b < buckets; b++) {
    const part = points.slice(Math.floor(b * size), Math.floor((b + 1) * size));
    let low = 0, high = 0;
    part.forEach((point, i) => { if (point[1] < part[low][1]) low = i; if (point[1] > part[high][1]) high = i; });
    for (const i of [...new Set([0, low, high, part.length - 1])].sort((a, b) => a - b)) kept.push(part[i]);
  }
  return kept;
}

function smoothed(points) {
  const reach = Math.max(1, Math.floor(points.length / 80)), sums = [0];
  for (const [, value] of points) sums.push(sums[sums.length - 1] + value);
  return points.map(([step], i) => {
    const first = Math.max(0, i - reach), last = Math.min(points.length, i + reach + 1);
    return [step, (sums[last] - sums[first]) / (last - first)];
  });
}

const at = (scale, value) => (value - scale.low) / (scale.high - scale.low);
const x = (scale, value) => +(SIDE * at(scale, value)).toFixed(1);
const y = (scale, value) => +(SIDE * (1 - at(scale, value))).toFixed(1);

function path(points, across, up) {
  return points.map(([step, value], i) => `${i ? "L" : "M"}${x(across, step)} ${y(up, value)}`).join("");
}

function dots(points, across, up) {
  return points.map(([step, value]) => `M${x(across, step)} ${y(up, value)}h0`).join("");
}

function drawn(curve, across, up) {
  const points = thinned(curve.points), parts = [];
  if (curve.dots) {
    const spans = curve.points.filter((point) => point[2]);
    const whisker = ([step, , [low, high]]) => `M${x(across, step)} ${y(up, low)}V${y(up, high)}`;
    parts.push(["whisker", spans.map(whisker).join("")]);
    parts.push(["join", path(points, across, up)]);
    parts.push([points.length >= NOISY ? "dot many" : "dot", dots(points, across, up)]);
  } else if (curve.points.length >= NOISY) {
    parts.push(["line pale", path(points, across, up)], ["line", path(thinned(smoothed(curve.points)), across, up)]);
  } else {
    parts.push(points.length === 1 ? ["dot", dots(points, across, up)] : ["line", path(points, across, up)]);
  }
  return parts.filter(([, d]) => d).map(([kind, d]) => [`${kind} s${curve.colour}`, d]);
}

export class Chart {
  constructor(parent, { share = false, label = "", ticks = 3 } = {}) {
    this.share = share; this.label = label; this.ticks = ticks; this.curves = []; this.told = "";
    this.node = element("div", "chart");
    this.node.setAttribute("role", "img");
    this.ys = element("div", "ys"); this.plot = element("div", "plot"); this.xs = element("div", "xs");
    for (const node of [this.ys, this.xs]) node.setAttribute("aria-hidden", "true");
    this.svg = drawing("svg");
    mark(this.svg, "viewBox", `0 0 ${SIDE} ${SIDE}`);
    mark(this.svg, "preserveAspectRatio", "none");
    mark(this.svg, "aria-hidden", "true");
    this.plot.append(this.svg);
    this.node.append(this.ys, this.plot, this.xs);
    parent.append(this.node);
    const follow = (event) => { under = { chart: this, x: event.clientX }; this.point(); };
    this.plot.addEventListener("pointermove", follow);
    this.plot.addEventListener("pointerdown", follow);
    this.plot.addEventListener("pointerleave", hide);
  }

  // Draw curves [{name, colour, dots, points: [[step, value, [low, high]?]]}]; nothing happens if nothing changed.
  draw(curves, first, last) {
    const ends = curves.map((curve) => [curve.name, curve.points.length, curve.points[curve.points.length - 1]]);
    const told = JSON.stringify([first, last, ends]);
    if (told === this.told) return;
    this.told = told;
    this.curves = curves;
    this.across = scaleOfSteps(first, last, this.ticks);
    this.up = this.share ? PERCENT : scaleOf(curves.flatMap((curve) => thinned(curve.points).map((point) => point[1])));
    const paths = [["rules", this.up.ticks.map((tick) => `M0 ${y(this.up, tick)}H${SIDE}`).join("")]];
    for (const curve of curves) paths.push(...drawn(curve, this.across, this.up));
    while (this.svg.childNodes.length > paths.length) this.svg.lastChild.remove();
    paths.forEach(([kind, d], i) => {
      const node = this.svg.childNodes[i] || this.svg.appendChild(drawing("path"));
      mark(node, "class", kind);
      mark(node, "d", d);
    });
    const written = this.up.ticks.map((tick) => (this.share ? percent(tick) : number(tick)));
    label(this.ys, this.up.ticks.map((tick, i) => [written[i], "top", 100 - 100 * at(this.up, tick)]));
    label(this.xs, this.across.ticks.map((tick) => [number(tick), "left", 100 * at(this.across, tick)]));
    mark(this.node, "aria-label", this.words());
    if (under && under.chart === this) this.point();
  }

  words() {
    const ends = this.curves.filter((curve) => curve.points.length).map((curve) => {
      const [step, value] = curve.points[curve.points.length - 1];
      return `${curve.name} ${this.written(value)} at update ${step}`;
    });
    return `${this.label}: ${ends.join(", ")}`;
  }

  written(value) { return this.share ? percent(value, 1) : number(value); }

  // Show what lies under the pointer.
  point() {
    const box = this.plot.getBoundingClientRect(), width = this.across.high - this.across.low;
    const wanted = this.across.low + (under.x - box.left) / box.width * width;
    const found = this.curves.filter((c) => c.points.length).map((curve) => [curve, nearest(curve.points, wanted)]);
    if (!found.length) return;
    const best = found.reduce((a, b) => (Math.abs(b[1][0] - wanted) < Math.abs(a[1][0] - wanted) ? b : a))[1][0];
    tip.replaceChildren(element("div", "", `update ${best}`));
    for (const [curve, [step, value, span]] of found) {
      if (Math.abs(step - best) > width * 0.012) continue;
      const line = element("div");
      line.append(element("i", `b${curve.colour}`), curve.name);
      const around = span ? ` (${(100 * span[0]).toFixed(0)}–${(100 * span[1]).toFixed(0)})` : "";
      line.append(element("b", "", this.written(value) + around));
      tip.append(line);
    }
    if (!tip.isConnected) document.body.append(tip);
    const left = at(this.across, best) * box.width;
    this.plot.append(rule);
    rule.style.left = `${left}px`;
    tip.hidden = rule.hidden = false;
    let beside = box.left + left + 14;
    const room = document.documentElement.clientWidth - 8 - tip.offsetWidth;
    if (beside > room) beside = box.left + left - tip.offsetWidth - 14;
    tip.style.left = `${Math.max(8, beside) + window.scrollX}px`;
    tip.style.top = `${box.top + window.scrollY + 8}px`;
  }
}

function drawing(tag) { return document.createElementNS("http://www.w3.org/2000/svg", tag); }

function label(parent, entries) {
  while (parent.childNodes.length > entries.length) parent.lastChild.remove();
  entries.forEach(([text, side, share], i) => {
    const node = parent.childNodes[i] || parent.appendChild(element("span"));
    write(node, text);
    node.style[side] = `${share.toFixed(2)}%`;
  });
}

function nearest(points, wanted) {
  let low = 0, high = points.length - 1;
  while (high - low > 1) { const mid = (low + high) >> 1; if (points[mid][0] < wanted) low = mid; else high = mid; }
  return wanted - points[low][0] < points[high][0] - wanted ? points[low] : points[high];
}

function hide() { under = null; tip.hidden = rule.hidden = true; }
