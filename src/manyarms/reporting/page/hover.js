// What lies under the pointer on a chart, from the facts that reporting/charts.py writes beside it.
(() => {
  const made = (kind) => Object.assign(document.createElement("div"), { className: kind, hidden: true });
  const tip = made("tip"), rule = made("rule");
  let pointer = null;

  const written = (value) => {
    const size = Math.abs(value);
    const short = size && (size < 1e-3 || size >= 1e7);
    const text = short ? value.toExponential(2) : String(+value.toPrecision(size >= 1e4 ? 7 : 4));
    return text.replaceAll("-", "\u2212");
  };

  function nearest(points, x) {
    let low = 0, high = points.length - 1;
    while (high - low > 1) { const mid = (low + high) >> 1; if (points[mid][0] < x) low = mid; else high = mid; }
    return x - points[low][0] < points[high][0] - x ? low : high;
  }

  function line(text, value, colour) {
    const node = document.createElement("div");
    if (colour !== undefined) node.append(Object.assign(document.createElement("i"), { className: `k${colour}` }));
    node.append(text);
    if (value) node.append(Object.assign(document.createElement("b"), { textContent: value }));
    return node;
  }

  function show(plot, x) {
    const facts = plot.facts || (plot.facts = JSON.parse(plot.dataset.facts));
    const box = plot.getBoundingClientRect(), width = facts.to - facts.from;
    const wanted = facts.from + (x - box.left) / box.width * width;
    const found = facts.curves.filter(([, , points]) => points.length).map(([name, colour, points, spans]) => {
      const i = nearest(points, wanted);
      return { name, colour, step: points[i][0], value: points[i][1], span: spans && spans[i] };
    });
    if (!found.length) return hide();
    const best = found.reduce((a, b) => (Math.abs(b.step - wanted) < Math.abs(a.step - wanted) ? b : a)).step;
    tip.replaceChildren(line(`update ${Math.round(best)}`));
    for (const { name, colour, step, value, span } of found) {
      if (Math.abs(step - best) > width * 0.012) continue;
      const around = span ? ` (${(100 * span[0]).toFixed(0)}\u2013${(100 * span[1]).toFixed(0)})` : "";
      tip.append(line(name, (facts.percent ? `${(100 * value).toFixed(1)}\u202f%` : written(value)) + around, colour));
    }
    if (!tip.isConnected) document.body.append(tip);
    plot.append(rule);
    const at = (best - facts.from) / width * box.width;
    rule.style.left = `${at}px`;
    tip.hidden = rule.hidden = false;
    let left = box.left + at + 14;
    if (left + tip.offsetWidth > document.documentElement.clientWidth - 8) left = box.left + at - tip.offsetWidth - 14;
    tip.style.left = `${Math.max(8, left) + window.scrollX}px`;
    tip.style.top = `${box.top + window.scrollY + 8}px`;
  }

  function hide() { tip.hidden = rule.hidden = true; }

  function follow(target) {
    const plot = target && target.closest && target.closest(".plot");
    if (plot) show(plot, pointer.clientX); else hide();
  }

  for (const kind of ["pointermove", "pointerdown"]) {
    document.addEventListener(kind, (event) => { pointer = event; follow(event.target); });
  }
  document.documentElement.addEventListener("pointerleave", hide);
  // Whoever has put other charts in their places says so.
  document.addEventListener("redrawn", () => {
    if (!tip.hidden) follow(document.elementFromPoint(pointer.clientX, pointer.clientY));
  });
})();
