// The page of a run: ask for its state about once a second, and redraw what has changed.
import { showEnvironments } from "./tiles.js";
import { count, duration, element, interval, isOver, mark, number, percent, phaseWords, tasksOf, write } from "./words.js";

const at = (id) => document.getElementById(id);
let position = "", seen = {};

// -- asking ----------------------------------------------------------------------------------------------------------

async function ask() {
  let wait = document.hidden ? 10000 : 1000;
  try {
    const answer = await fetch(`state?since=${encodeURIComponent(position)}&looking=${document.hidden ? 0 : 1}`);
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    const state = await answer.json();
    place(state);
    show(state);
    at("notice").hidden = true;
    if (state.more) wait = 0;
    else if (isOver(state)) wait = Math.max(wait, 3000);
  } catch (error) {
    at("notice").hidden = false;
    write(at("notice"), `Nothing new: ${error.message}. Is manyarms watch still running? Trying again.`);
    wait = 3000;
  }
  timer = setTimeout(ask, wait);
}

let timer = 0;
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && timer) { clearTimeout(timer); timer = 0; ask(); }
});

// Put what the server has drawn anew in its places: all words of others in it are escaped, and no script runs in it.
function place(state) {
  position = state.position;
  for (const [id, drawn] of Object.entries(state.parts)) {
    at(id).innerHTML = drawn;
    at(id).closest("section").hidden = !drawn;
  }
  document.dispatchEvent(new Event("redrawn"));
}

// -- showing ---------------------------------------------------------------------------------------------------------

// Call `draw` if what it shows differs from what it showed last.
function changed(name, value, draw) {
  const text = JSON.stringify(value);
  if (seen[name] === text) return;
  seen[name] = text;
  draw(value);
}

function show(state) {
  document.title = `${state.name} · ${state.phase}`;
  write(at("name"), state.name);
  const words = [state.simulator, tasksOf(state)];
  words.push(state.policy && `policy ${state.policy}`, state.started && `since ${state.started}`);
  write(at("about"), words.filter(Boolean).join(" · "));
  at("up").hidden = !state.up;
  mark(at("up").firstElementChild, "href", state.up || null);
  mark(at("phase"), "data-phase", state.phase);
  write(at("phase-words"), phaseWords(state));
  at("report").hidden = !state.report;
  write(at("place"), isOver(state) ? `The run in ${state.folder} is over; this is how it ended.` : state.folder);
  changed("facts", facts(state), showFacts);
  showProgress(state);
  const judged = state.judged === null ? "" : `The evaluation after ${count(state.judged, "update")}.`;
  const played = isOver(state) ? "All episodes." : "Episodes so far.";
  write(at("tasks-note"), state.kind === "evaluation" ? played : judged);
  showEnvironments(state);
  changed("failures", state.failures, showFailures);
  changed("videos", state.videos, showVideos);
  // An evaluation has no curves: its videos take their place.
  changed("kind", state.kind, (kind) => {
    if (kind === "evaluation") document.querySelector(".column").append(at("videos"));
  });
}

function facts(state) {
  const found = [], over = isOver(state);
  const things = state.kind === "evaluation" ? "Episodes" : "Update";
  const total = state.total ? `of ${state.total.toLocaleString("en")}` : "";
  found.push([things, state.done.toLocaleString("en"), total, ""]);
  if (state.success) {
    const where = state.judged !== null ? " in evaluation" : " in training";
    const before = state.first_success ? `; ${percent(state.first_success.rate)} at first` : "";
    const counted = `${state.success.successes} of ${state.success.episodes}`;
    const told = `${counted}, 95\u202f% interval ${interval(state.success)}${before}`;
    found.push([`Success${state.kind === "evaluation" ? "" : where}`, percent(state.success.rate), "", told]);
  }
  const passed = state.seconds ? `${duration(state.seconds)} so far` : "";
  if (state.left !== null) found.push(["Time left", `~\u202f${duration(state.left)}`, "", passed]);
  else if (state.seconds !== null) found.push([over ? "Wall time" : "Time so far", duration(state.seconds), "", ""]);
  const stepped = state.steps === null ? "" : `${number(state.steps, 3)} so far`;
  if (state.speed !== null) found.push(["Env-steps a second", number(state.speed, 3), "", stepped]);
  const live = state.processes.filter((process) => over || !process.closed);
  const rows = live.reduce((sum, process) => sum + process.rows.length, 0);
  const restarts = new Set(state.processes.flatMap((process) => process.rows.filter((row) => row.restarts)
    .map((row) => `${process.name} ${row.worker}`)));
  if (rows) {
    const told = [live.length > 1 && `${live.length} processes`];
    told.push(restarts.size && `${count(restarts.size, "worker")} restarted`);
    found.push(["Environments", number(rows), "", told.filter(Boolean).join(", ")]);
  }
  return found;
}

function showFacts(found) {
  at("facts").replaceChildren(...found.map(([name, value, of, more]) => {
    const cell = element("div"), told = element("dd", "", value);
    if (of) told.append(" ", element("span", "of", of));
    if (more) told.append(element("small", "", more));
    cell.append(element("dt", "", name), told);
    return cell;
  }));
}

function showProgress(state) {
  const bar = at("progress");
  bar.hidden = !state.total;
  if (!state.total) return;
  mark(bar, "aria-valuemax", state.total);
  mark(bar, "aria-valuenow", state.done);
  bar.firstElementChild.style.width = `${Math.min(100, 100 * state.done / state.total)}%`;
}

function showFailures(failures) {
  at("failures").hidden = !failures.length;
  at("failures-list").replaceChildren(...failures.map((failure) => {
    const item = element("li", "", failure.failure);
    const rows = failure.rows.length > 1 ? `rows ${failure.rows.join(", ")}` : `row ${failure.rows[0]}`;
    const when = failure.when ? new Date(1000 * failure.when).toLocaleTimeString() : "before this page was opened";
    const seed = failure.seed === null ? "" : `seed ${failure.seed}`;
    const told = [when, `${failure.process}, ${rows}`, failure.task, seed].filter(Boolean);
    item.append(element("span", "", told.join(" · ")));
    return item;
  }));
}

// Keep the players that are there: one may be playing.
function showVideos(videos) {
  at("videos").hidden = !videos.length;
  const films = at("films"), known = new Map([...films.children].map((node) => [node.dataset.key, node]));
  const nodes = videos.map((video) => {
    const key = `${video.path} ${video.stamp}`;
    if (known.has(key)) return known.get(key);
    const figure = element("figure"), player = element("video"), parts = video.path.split("/").slice(1);
    figure.dataset.key = key;
    Object.assign(player, { controls: true, muted: true, loop: true, playsInline: true, preload: "metadata" });
    // The fragment makes browsers show a frame instead of nothing before it is played.
    player.src = `${video.path.split("/").map(encodeURIComponent).join("/")}?${video.stamp}#t=0.05`;
    player.setAttribute("aria-label", video.path);
    figure.append(player, element("figcaption", "", parts.join(" / ").replace(/\.mp4$/, "")));
    return figure;
  });
  for (const node of [...films.children]) if (!nodes.includes(node)) node.remove();
  nodes.forEach((node, i) => { if (films.children[i] !== node) films.insertBefore(node, films.children[i] || null); });
}

ask();
