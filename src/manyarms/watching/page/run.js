// The page of a run: ask for its state about once a second, and redraw what has changed.
import { Chart } from "./charts.js";
import { showEnvironments } from "./tiles.js";
import {
  count, duration, element, interval, isOver, mark, number, percent, phaseWords, tasksOf, write,
} from "./words.js";

const at = (id) => document.getElementById(id);
const CURVES = [
  ["env/return", "return"], ["env/episode_len", "episode length"], ["actor/loss", "loss"], ["actor/approx_kl", "KL"],
  ["actor/pg_clipfrac", "clip fraction"], ["throughput/env_steps_per_s", "env-steps/s"],
];
const series = new Map(), small = new Map();
let position = "", success = null, seen = {};

// -- asking ----------------------------------------------------------------------------------------------------------

async function ask() {
  let wait = document.hidden ? 10000 : 1000;
  try {
    const answer = await fetch(`state?since=${encodeURIComponent(position)}&looking=${document.hidden ? 0 : 1}`);
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    const state = await answer.json();
    learn(state.metrics);
    show(state);
    at("notice").hidden = true;
    if (state.metrics.more) wait = 0;
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

// Take in new lines; a step that comes again replaces what came after it, as in a run that is resumed.
function learn(metrics) {
  if (metrics.anew) series.clear();
  position = metrics.position;
  const { step: steps = [], ...columns } = metrics.columns;
  for (const [name, values] of Object.entries(columns)) {
    const points = series.get(name) || [];
    values.forEach((value, i) => {
      while (points.length && points[points.length - 1][0] >= steps[i]) points.pop();
      if (value !== null) points.push([steps[i], value]);
    });
    series.set(name, points);
  }
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
  showCurves(state);
  changed("tasks", [state.by_task, state.kind, isOver(state), state.evaluations.at(-1)?.step], () => showTasks(state));
  changed("stages", state.stages, showStages);
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
    const where = state.evaluations.length ? " in evaluation" : " in training";
    const before = state.first_success ? `; ${percent(state.first_success.rate)} at first` : "";
    const counted = `${state.success.successes} of ${state.success.episodes}`;
    const told = `${counted}, 95\u202f% interval ${interval(state.success)}${before}`;
    found.push([`Success${state.kind === "evaluation" ? "" : where}`, percent(state.success.rate), "", told]);
  }
  const passed = state.seconds ? `${duration(state.seconds)} so far` : "";
  if (state.left !== null) found.push(["Time left", `~\u202f${duration(state.left)}`, "", passed]);
  else if (state.seconds !== null) found.push([over ? "Wall time" : "Time so far", duration(state.seconds), "", ""]);
  const speed = latest("throughput/env_steps_per_s"), steps = latest("throughput/env_steps_total");
  const stepped = steps === null ? "" : `${number(steps, 3)} so far`;
  if (speed !== null) found.push(["Env-steps a second", number(speed, 3), "", stepped]);
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

function latest(name) {
  const points = series.get(name);
  return points && points.length ? points[points.length - 1][1] : null;
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

function showCurves(state) {
  const drawn = [...series.values()].filter((points) => points.length);
  const steps = drawn.flatMap((points) => [points[0][0], points[points.length - 1][0]]);
  const evaluated = state.evaluations.map((score) => [score.step, score.rate, [score.low, score.high]]);
  steps.push(...evaluated.map((point) => point[0]));
  if (!steps.length) return;
  const first = Math.min(...steps), last = Math.max(...steps);
  const training = series.get("env/success_once") || [], curves = [];
  if (training.length) curves.push({ name: "training", colour: evaluated.length ? 5 : 0, points: training });
  if (evaluated.length) curves.push({ name: "evaluation", colour: 0, dots: true, points: evaluated });
  at("curve").hidden = !curves.length;
  at("training").hidden = !CURVES.some(([name]) => (series.get(name) || []).length);
  success = success || new Chart(at("success"), { share: true, label: "success over updates", ticks: 6 });
  success.draw(curves, first, last);
  changed("legend", curves.map((curve) => [curve.name, curve.colour]), (named) => {
    at("success-legend").replaceChildren(...named.map(([name, colour]) => {
      const item = element("li");
      item.append(element("i", `b${colour}`), name === "evaluation" ? "evaluation, with 95\u202f% interval" : name);
      return item;
    }));
  });
  for (const [name, words] of CURVES) showSmall(name, words, first, last);
}

function showSmall(name, words, first, last) {
  const points = series.get(name);
  if (!points || !points.length) return;
  if (!small.has(name)) {
    const node = element("section", "small"), header = element("header"), value = element("span");
    header.append(element("h3", "", words), value);
    node.append(header);
    node.dataset.metric = name;
    // Curves that come later take their place among the others.
    const place = (metric) => CURVES.findIndex(([each]) => each === metric);
    const next = [...at("small").children].find((each) => place(each.dataset.metric) > place(name));
    at("small").insertBefore(node, next || null);
    small.set(name, { chart: new Chart(node, { label: words }), value });
  }
  const { chart, value } = small.get(name);
  write(value, number(points[points.length - 1][1]));
  chart.draw([{ name: words, colour: 0, points }], first, last);
}

function showTasks(state) {
  at("tasks").hidden = !state.by_task.length;
  const last = state.evaluations.at(-1);
  const judged = last ? `The evaluation after ${count(last.step, "update")}.` : "";
  const played = isOver(state) ? "All episodes." : "Episodes so far.";
  write(at("tasks-note"), state.kind === "evaluation" ? played : judged);
  at("tasks-rows").replaceChildren(...state.by_task.map((score) => {
    const row = element("tr"), head = element("td", "", score.task || "all episodes");
    const range = element("td", "range"), bell = element("span", "bell");
    const span = element("i", "span"), now = element("i", "now");
    span.style.left = `${100 * score.low}%`;
    span.style.width = `${100 * (score.high - score.low)}%`;
    now.style.left = `${100 * score.rate}%`;
    bell.append(span, now);
    range.append(bell);
    row.append(head, element("td", "", percent(score.rate)), element("td", "", interval(score)));
    row.append(element("td", "", `${score.successes} / ${score.episodes}`), range);
    row.append(element("td", "wide", score.length === null ? "–" : number(score.length, 3)));
    return row;
  }));
}

function showStages(stages) {
  const names = (stages.whole || []).map(([name]) => name);
  at("time").hidden = !names.length;
  const colour = (name) => { const i = names.indexOf(name); return name === "other" ? 5 : (i + (i >= 5)) % 7; };
  const kinds = [["whole", "whole run"], ["lately", "last 10 updates"]].filter(([kind]) => stages[kind]);
  const bars = kinds.map(([kind, words]) => {
    const node = element("div", "split"), bar = element("div", "whole");
    const all = stages[kind].reduce((sum, [, seconds]) => sum + seconds, 0);
    const shares = stages[kind].map(([name, seconds]) => [name, all ? seconds / all : 0]);
    for (const [name, share] of shares) {
      const part = element("i", `b${colour(name)}`);
      part.style.width = `${100 * share}%`;
      part.title = `${name}: ${percent(share)}`;
      bar.append(part);
    }
    bar.setAttribute("role", "img");
    const told = shares.map(([name, share]) => `${name} ${percent(share)}`);
    bar.setAttribute("aria-label", `${words}: ${told.join(", ")}`);
    node.append(element("span", "", words), bar);
    return node;
  });
  at("time-bars").replaceChildren(...bars);
  const all = (stages.whole || []).reduce((sum, [, seconds]) => sum + seconds, 0);
  at("time-legend").replaceChildren(...(stages.whole || []).map(([name, seconds]) => {
    const item = element("li");
    item.append(element("i", `b${colour(name)}`), name);
    item.append(element("b", "", percent(seconds / all)), ` ${duration(seconds)}`);
    return item;
  }));
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
