// Numbers and times as people read them; elements made and filled without ever parsing text as HTML.

export function element(tag, kind, text) {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  if (text !== undefined && text !== null) made.textContent = text;
  return made;
}

// Write only what differs: the page keeps its selection, its focus and the browser its rest.
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function mark(node, name, value) {
  if (value === null || value === undefined) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

function plain(value, digits) {
  const text = Math.abs(value) < 1000 ? String(+value.toPrecision(digits)) : value.toFixed(Math.max(0, digits - 4));
  return text.replace("-", "−");
}

export function number(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  for (const [least, size, unit] of [[1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"]]) {
    if (Math.abs(value) >= least) return `${plain(value / size, digits)}\u202f${unit}`;
  }
  if (value && Math.abs(value) < 1e-3) {
    const [mantissa, exponent] = value.toExponential(digits - 2).split("e");
    return `${plain(+mantissa, digits)}e${+exponent}`.replace("-", "−");
  }
  return plain(value, digits);
}

export function percent(rate, digits = 0) {
  return Number.isFinite(rate) && rate !== null ? `${(100 * rate).toFixed(digits)}\u202f%` : "–";
}

export function interval(score) {
  return `${(100 * score.low).toFixed(0)}–${(100 * score.high).toFixed(0)}\u202f%`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${Math.floor(seconds)}\u202fs`;
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  if (days) return `${days}\u202fd ${hours % 24}\u202fh`;
  if (hours) return `${hours}\u202fh ${minutes % 60}\u202fmin`;
  return minutes < 10 ? `${minutes}\u202fmin ${Math.floor(seconds % 60)}\u202fs` : `${minutes}\u202fmin`;
}

export function count(n, word) {
  return `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
}

// Name what is played, once.
export function tasksOf(state) {
  const tasks = state.tasks.length > 3 ? `${state.tasks.length} tasks` : state.tasks.join(", ");
  return String(state.simulator || "").endsWith(`/${tasks}`) ? "" : tasks;
}

export const isOver = (state) => state.phase === "finished" || state.phase === "failed";

export function phaseWords(state) {
  switch (state.phase) {
    case "running": return "running";
    case "starting": return "starting";
    case "silent": return `silent for ${duration(state.silent)}: probably dead`;
    case "failed": return state.because;
    default: return `finished: ${state.because}`;
  }
}
