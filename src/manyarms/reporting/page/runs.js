// The list of runs, newest first.
import { count, duration, element, mark, percent, phaseWords, tasksOf, write } from "./words.js";

const rows = new Map();

class Row {
  constructor() {
    this.node = element("li");
    this.link = element("a");
    this.title = element("span", "title");
    this.stand = element("span", "stand");
    this.words = element("span");
    this.stand.append(element("i"), this.words);
    this.about = element("span", "soft");
    this.score = element("span", "soft score");
    this.link.append(this.title, this.stand, this.about, this.score);
    this.node.append(this.link);
  }

  show(run) {
    mark(this.link, "href", run.href);
    write(this.title, run.name);
    mark(this.stand, "data-phase", run.phase);
    const ago = duration(Math.max(0, Date.now() / 1000 - run.changed));
    const words = { silent: `silent for ${ago}`, failed: phaseWords(run) };
    write(this.words, words[run.phase] || run.phase);
    const policy = run.policy && `policy ${run.policy}`;
    write(this.about, [run.kind, run.simulator, tasksOf(run), policy, `${ago} ago`].filter(Boolean).join(" · "));
    write(this.score, score(run));
  }
}

// What was judged may be older than what was last done: each is told with its own count.
function score({ kind, success, done, total }) {
  const what = kind === "evaluation" ? "episode" : "update";
  const progress = total && total !== done ? `${done.toLocaleString("en")} of ${count(total, what)}` : count(done, what);
  if (!success) return progress;
  const rate = `${percent(success.rate)} success after`;
  return (success.step ?? done) === done ? `${rate} ${progress}` : `${rate} ${count(success.step, what)} · ${progress}`;
}

async function ask() {
  try {
    const answer = await fetch("list");
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    const found = await answer.json();
    document.getElementById("notice").hidden = true;
    document.title = `runs in ${found.folder}`;
    write(document.getElementById("folder"), `${found.folder}, newest first`);
    const list = document.getElementById("runs");
    for (const [name, row] of rows) {
      if (!found.runs.some((run) => run.name === name)) { row.node.remove(); rows.delete(name); }
    }
    found.runs.forEach((run, i) => {
      if (!rows.has(run.name)) rows.set(run.name, new Row());
      const row = rows.get(run.name);
      row.show(run);
      if (list.children[i] !== row.node) list.insertBefore(row.node, list.children[i] || null);
    });
  } catch (error) {
    document.getElementById("notice").hidden = false;
    write(document.getElementById("notice"), `Nothing new: ${error.message}. Is manyarms watch still running?`);
  }
  setTimeout(ask, document.hidden ? 15000 : 3000);
}

ask();
