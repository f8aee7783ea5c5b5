// Every environment as a tile: its latest frame, cut out of its process's contact sheet, and what it does.
import { count, duration, element, isOver, mark, write } from "./words.js";

const STATES = ["stepping", "idle", "resetting", "ended", "starting", "restarting", "given up"];
const processes = new Map();

class Tile {
  constructor() {
    this.node = element("li", "tile");
    this.canvas = element("canvas");
    this.canvas.hidden = true;
    this.canvas.setAttribute("aria-hidden", "true");
    const words = element("div", "words");
    this.task = element("span", "task");
    const state = element("span", "state");
    this.state = element("span");
    state.append(element("i"), this.state);
    this.steps = element("span", "steps");
    words.append(this.task, state, this.steps);
    this.restarts = element("span", "restarts");
    this.node.append(this.canvas, words, this.restarts);
  }

  show(row) {
    const state = row.state || "idle";
    mark(this.node, "data-state", state);
    mark(this.node, "data-row", row.row);
    write(this.task, row.task || `row ${row.row}`);
    write(this.state, state);
    write(this.steps, row.episode_steps === null ? `row ${row.row}` : `${row.row} · step ${row.episode_steps}`);
    this.restarts.hidden = !row.restarts;
    write(this.restarts, `↻ ${row.restarts}`);
    mark(this.restarts, "aria-label", count(row.restarts || 0, "restart"));
    mark(this.node, "title", title(row));
  }

  draw(image, sheet, frame) {
    const known = Number.isInteger(frame) && frame >= 0;
    this.canvas.hidden = !known;
    if (!known) return;
    if (this.canvas.width !== sheet.width || this.canvas.height !== sheet.height) {
      this.canvas.width = sheet.width;
      this.canvas.height = sheet.height;
    }
    const left = (frame % sheet.columns) * sheet.width, top = Math.floor(frame / sheet.columns) * sheet.height;
    this.canvas.getContext("2d").drawImage(
      image, left, top, sheet.width, sheet.height, 0, 0, sheet.width, sheet.height);
  }
}

function title(row) {
  const lines = [`row ${row.row}, worker ${row.worker ?? "?"}` + (row.pid ? `, process ${row.pid}` : "")];
  if (row.task) lines.push(row.task + (row.seed === null ? "" : `, seed ${row.seed}`));
  else if (row.seed !== null) lines.push(`seed ${row.seed}`);
  lines.push(`${row.state}, step ${row.episode_steps ?? "–"}, ${count(row.episodes || 0, "episode")} before`);
  if (row.restarts) lines.push(`${count(row.restarts, "restart")} of its worker`);
  if (row.failure) lines.push(`last failure: ${row.failure}`);
  return lines.join("\n");
}

class Process {
  constructor() {
    this.node = element("section", "process");
    const header = element("header");
    this.title = element("h3");
    this.words = element("span");
    this.silent = element("span", "silent");
    header.append(this.title, this.words, this.silent);
    this.header = header;
    this.list = element("ul", "tiles");
    this.node.append(header, this.list);
    this.tiles = [];
    this.written = "";
  }

  show(process, several, over) {
    const silent = !process.closed && !over && process.silent >= process.patience;
    this.header.hidden = !several && !process.closed && !silent;
    write(this.title, process.name);
    const rows = count(process.rows.length, "environment");
    write(this.words, [process.simulator, rows, process.closed ? "closed" : ""].filter(Boolean).join(" · "));
    write(this.silent, silent ? `silent for ${duration(process.silent)}` : "");
    this.node.classList.toggle("closed", process.closed && !over);
    mark(this.list, "aria-label", `environments of ${process.name}`);
    const n = process.rows.length;
    mark(this.list, "data-many", n <= 8 ? "few" : n <= 32 ? "some" : n <= 128 ? "many" : "crowd");
    while (this.tiles.length > n) this.tiles.pop().node.remove();
    while (this.tiles.length < n) {
      this.tiles.push(new Tile());
      this.list.append(this.tiles[this.tiles.length - 1].node);
    }
    process.rows.forEach((row, i) => this.tiles[i].show(row));
    this.picture(process);
  }

  // Fetch the sheet when there is a new one, and draw it when it is all there: nothing flickers.
  picture(process) {
    const sheet = process.sheet;
    if (!sheet || sheet.written === this.written || this.loading) return;
    this.loading = true;
    const image = new Image();
    image.onload = () => {
      this.loading = false;
      this.written = sheet.written;
      process.rows.forEach((row, i) => this.tiles[i] && this.tiles[i].draw(image, sheet, row.frame));
    };
    image.onerror = () => { this.loading = false; };
    image.src = `live/${encodeURIComponent(sheet.file)}?${encodeURIComponent(sheet.written)}`;
  }
}

export function showEnvironments(state) {
  const over = isOver(state);
  const parent = document.getElementById("processes");
  document.getElementById("environments").hidden = !state.processes.length;
  for (const [name, process] of processes) {
    if (!state.processes.some((each) => each.name === name)) { process.node.remove(); processes.delete(name); }
  }
  state.processes.forEach((each, i) => {
    if (!processes.has(each.name)) processes.set(each.name, new Process());
    const process = processes.get(each.name);
    if (parent.children[i] !== process.node) parent.insertBefore(process.node, parent.children[i] || null);
    process.show(each, state.processes.length > 1, over);
  });
  showCounts(state, over);
}

function showCounts(state, over) {
  const counts = new Map();
  const live = state.processes.filter((process) => over || !process.closed);
  for (const process of live) {
    for (const row of process.rows) counts.set(row.state, (counts.get(row.state) || 0) + 1);
  }
  const list = document.getElementById("counts");
  const shown = STATES.filter((name) => counts.get(name));
  while (list.children.length > shown.length) list.lastChild.remove();
  shown.forEach((name, i) => {
    let node = list.children[i];
    if (!node) {
      node = element("li");
      node.append(element("i"), element("b"), element("span"));
      list.append(node);
    }
    mark(node, "data-state", name);
    write(node.children[1], String(counts.get(name)));
    write(node.children[2], name);
  });
  let total = 0;
  for (const n of counts.values()) total += n;
  const title = over ? "Environments, as they were last" : `Environments (${total})`;
  write(document.getElementById("environments-title"), title);
}
