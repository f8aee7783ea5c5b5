"""The report of a training run: one page that opens offline, from what the run left in its folder."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from statistics import median
from urllib.parse import quote

from manyarms.reporting.charts import (
    COLOURS,
    GREY,
    NOISY,
    PAGE,
    PERCENT,
    Curve,
    Lines,
    Plot,
    Point,
    Scale,
    breakable,
    interval_bar,
    legend,
    line_chart,
    listed,
    number,
    percent,
    share_bar,
    small_chart,
    stacked_chart,
)
from manyarms.reporting.files import write_atomically
from manyarms.reporting.results import wilson
from manyarms.reporting.runs import CLOCKS, Run, Score, newest_videos, seconds_by_stage

_VIDEO_BYTES = 20 << 20

_TITLES = {
    "env": "Episodes played for training",
    "eval": "Evaluation",
    "rollout": "Rollouts",
    "actor": "Actor",
    "critic": "Critic",
}

#: Shown by charts of their own.
_ELSEWHERE = ("env/success_once", "eval/success_once")

#: Bars that the split of the time is drawn with, at most.
_BARS = 60


def write_report(folder: Path) -> Path:
    """Write `report.html` into the folder of a run, finished or not; return its path."""
    run = Run.of(folder)
    parts = [
        _heading(run),
        _success(run),
        _tasks(run),
        *_groups(run),
        _time(run),
        _videos(run),
        _settings(run),
    ]
    path = folder / "report.html"
    write_atomically(path, page(f"{run.name}: training report", "\n".join(part for part in parts if part)))
    return path


def page(title: str, body: str) -> str:
    """Return a whole page, in ASCII: it reads the same whatever encoding it is taken for."""
    style = "".join((PAGE / name).read_text() for name in ("charts.css", "page.css", "report.css"))
    script = (PAGE / "hover.js").read_text()  # ASCII, as all that is in the page itself
    text = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head>\n"
        f"<body><main>\n{body}\n</main><script>{script}</script></body></html>\n"
    )
    return text.encode("ascii", "xmlcharrefreplace").decode()


def training_plot(folder: Path, label: str) -> Plot:
    """Return the success and the return of a run, finished or not, update by update."""
    run = Run.of(folder)
    earned = [
        Curve(name, run.series[metric], colour=GREY * (metric == "env/return"), dots=metric == "eval/return")
        for metric, name in (("env/return", "training"), ("eval/return", "evaluation"))
        if metric in run.series
    ]
    return Plot(label, [Lines("success", success_curves(run), up=PERCENT), Lines("return", earned)])


# -- the headline -----------------------------------------------------------------------------------------------------


def _heading(run: Run) -> str:
    facts = run.facts
    words = (facts.policy, facts.simulator, f"{len(facts.tasks)} tasks" if len(facts.tasks) > 1 else "", facts.started)
    told = " · ".join(escape(word) for word in words if word)
    tiles = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in _tiles(run))
    return (
        f'<h1>{escape(run.name)}</h1><p class="soft">{told or "training report"}</p>'
        f'<div class="head"><div>{_headline(run)}</div><dl class="facts">{tiles}</dl></div>'
    )


def _headline(run: Run) -> str:
    """Return success first and last, with what is known of its uncertainty."""
    scores = [Score.sum(list(tasks.values())) for tasks in run.evaluations.values()]
    if scores:
        first, last = scores[0], scores[-1]
        told = f"{last.successes} of {last.episodes} episodes, 95\u202f% interval {between(last)}"
        if len(scores) > 1:
            told += f"<br>at first {first.successes} of {first.episodes}, {between(first)}"
        return _rates("Success in evaluation", first.rate, last.rate, told, several=len(scores) > 1)
    points = [point for point in run.series.get("eval/success_once", ()) if math.isfinite(point[1])]
    if points:
        told = f"at update {points[-1][0]}"
        return _rates("Success in evaluation", points[0][1], points[-1][1], told, several=len(points) > 1)
    points = [point for point in run.series.get("env/success_once", ()) if math.isfinite(point[1])]
    if not points:
        return '<p class="label">Success</p><p class="rate">–</p><p class="soft">None was measured.</p>'
    count = max(1, min(10, len(points) // 10))
    first, last = (sum(value for _, value in part) / count for part in (points[:count], points[-count:]))
    told = "There was no evaluation." if count == 1 else f"Means of {count} updates. There was no evaluation."
    return _rates("Success in training", first, last, _training_interval(run, points[-count:]) + told, len(points) > 1)


def _training_interval(run: Run, points: Sequence[Point]) -> str:
    episodes = dict(run.series.get("env/num_trajectories", ()))
    counts = [episodes.get(step, math.nan) for step, _ in points]
    if not all(math.isfinite(count) for count in counts):
        return ""
    played = round(sum(counts))
    won = round(sum(count * value for count, (_, value) in zip(counts, points, strict=True)))
    return f"{won} of {played} episodes, 95\u202f% interval {between(Score(won, played, wilson(won, played), 0.0))}<br>"


def _rates(label: str, first: float, last: float, told: str, several: bool) -> str:
    before = f'<span class="was">{percent(first)}</span><span class="to">→</span>' if several else ""
    return f'<p class="label">{label}</p><p class="rate">{before}{percent(last)}</p><p class="soft">{told}</p>'


def _tiles(run: Run) -> Iterator[tuple[str, str]]:
    steps = run.latest("throughput/env_steps_total")
    if math.isfinite(steps):
        yield "Environment steps", number(steps)
    if math.isfinite(run.latest("seconds")):
        yield "Wall time", _duration(run.latest("seconds"))
    updates = max((int(step) for step, _ in run.series.get("seconds", ())), default=0)
    if updates:
        because = run.facts.finished_because
        yield "Updates", f"{updates:,}" + (f" <small>{escape(because)}</small>" if because else "")
    speeds = [value for _, value in run.series.get("throughput/env_steps_per_s", ()) if math.isfinite(value)]
    if speeds:
        yield "Steps a second", f"{number(float(f'{median(speeds):.3g}'))} <small>median</small>"


def between(score: Score) -> str:
    """Return the interval of a score in words."""
    return f"{100 * score.interval[0]:.0f}–{100 * score.interval[1]:.0f}\u202f%"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f}\u202fs"
    minutes, hours = int(seconds) // 60, int(seconds) // 3600
    if hours:
        return f"{hours}\u202fh {minutes % 60}\u202fmin"
    return f"{minutes}\u202fmin {int(seconds) % 60}\u202fs"


# -- success ----------------------------------------------------------------------------------------------------------


def success_curves(run: Run) -> list[Curve]:
    """Return success in training and in evaluation, as far as there was any."""
    scores = {step: Score.sum(list(tasks.values())) for step, tasks in run.evaluations.items()}
    points = [(float(step), score.rate) for step, score in scores.items()]
    if not points:
        points = [point for point in run.series.get("eval/success_once", ()) if math.isfinite(point[1])]
    curves = []
    training = run.series.get("env/success_once", ())
    if any(math.isfinite(value) for _, value in training):
        curves.append(Curve("training", training, colour=GREY if points else 0))
    if points:
        whiskers = [score.interval for score in scores.values()]
        note = "with 95\u202f% interval" if whiskers else ""
        curves.append(Curve("evaluation", points, colour=0, dots=True, whiskers=whiskers, note=note))
    return curves


def _success(run: Run) -> str:
    curves = success_curves(run)
    if not curves:
        return ""
    note = "Share of episodes solved, by update."
    if len(run.series.get("env/success_once", ())) >= NOISY:
        note += " Pale lines are single updates, strong ones their mean."
    chart = line_chart(curves, _across(run), up=PERCENT, buckets=400, label="success over updates")
    return f'<h2>Success</h2><p class="note">{note}</p>{legend(curves)}<div class="big">{chart}</div>'


def _tasks(run: Run) -> str:
    """Return the table of tasks, first evaluation against last."""
    if not run.evaluations:
        return ""
    begin, end = min(run.evaluations), max(run.evaluations)
    first, last = run.evaluations[begin], run.evaluations[end]
    rows = [_task_row(task, first.get(task), last.get(task), begin != end) for task in dict.fromkeys([*last, *first])]
    if len(rows) > 1:
        before, after = (Score.sum(list(tasks.values())) for tasks in (first, last))
        rows.append(_task_row("all tasks", before, after, begin != end).replace("<tr>", '<tr class="all">'))
    before = f"<th>update {begin}</th>" if begin != end else ""
    change = '<th class="wide">change</th>' if begin != end else ""
    return (
        '<h2>Success by task</h2><p class="note">Solved episodes with their 95\u202f% interval'
        f'{"; grey the first evaluation, blue the last" if before else ""}.</p><div class="scroll"><table><thead><tr>'
        f'<th>task</th>{before}<th>update {end}</th>{change}<th class="range"><span class="ends">'
        '<span>0</span><span>100\u202f%</span></span></th><th class="wide">mean length</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _task_row(task: str, first: Score | None, last: Score | None, several: bool) -> str:
    cells = [f"<td>{breakable(task or 'all episodes')}</td>"]
    if several:
        cells.append(f'<td class="rate-then">{_rate_cell(first)}</td>')
    cells.append(f'<td class="rate-now">{_rate_cell(last)}</td>')
    if several:
        change = f"{100 * (last.rate - first.rate):+.0f}".replace("-", "−") if first and last else "–"
        cells.append(f'<td class="wide">{change}</td>')
    before = first.rate if first and several else None
    cells.append(f'<td class="range">{interval_bar(last.rate, last.interval, before=before) if last else ""}</td>')
    lengths = [number(round(score.mean_length, 1)) for score in (first if several else None, last) if score]
    cells.append(f'<td class="wide">{" → ".join(lengths)}</td>')
    return f"<tr>{''.join(cells)}</tr>"


def _rate_cell(score: Score | None) -> str:
    if score is None:
        return "–"
    return f"{percent(score.rate)}<small>{between(score)}, {score.successes}/{score.episodes}</small>"


# -- curves -----------------------------------------------------------------------------------------------------------


def _groups(run: Run) -> Iterator[str]:
    """Yield the curves of every prefix that has no section of its own."""
    prefixes = {name.partition("/")[0] if "/" in name else "" for name in run.series if name not in CLOCKS}
    known = [prefix for prefix in _TITLES if prefix in prefixes]
    for prefix in [*known, *sorted(prefixes - {*known, "time", "throughput"})]:
        charts = _small_charts(run, [name for name in run.series if name.startswith(f"{prefix}/" if prefix else "")])
        if not prefix:
            charts = _small_charts(run, [name for name in run.series if "/" not in name and name not in CLOCKS])
        if charts:
            yield f"<h2>{escape(_TITLES.get(prefix, prefix.capitalize() or 'Other'))}</h2>{charts}"


def _across(run: Run, ticks: int = 6) -> Scale:
    return Scale.of_steps(*run.span, ticks)


def _small_charts(run: Run, names: Sequence[str]) -> str:
    across = _across(run, 3)
    charts = []
    for name in names:
        points = run.series[name]
        if name in _ELSEWHERE or not any(math.isfinite(value) for _, value in points):
            continue
        # Evaluations are few and far between: dots, else nothing would show where they are.
        dots = name.startswith("eval/") and len(points) < NOISY
        charts.append(small_chart(name, name.partition("/")[2] or name, points, across, dots=dots))
    return f'<div class="grid">{"".join(charts)}</div>' if charts else ""


# -- time -------------------------------------------------------------------------------------------------------------


def _time(run: Run) -> str:
    speed = _small_charts(run, [name for name in run.series if name.startswith("throughput/")])
    return _split(run) + (f"<h2>Throughput</h2>{speed}" if speed else "")


def _split(run: Run) -> str:
    stages = seconds_by_stage(run)
    if not stages:
        return ""
    totals = {name: sum(values.values()) for name, values in stages.items()}
    colours = list(stage_colours(totals).items())
    shares = [total / sum(totals.values()) for total in totals.values()]
    return (
        '<h2>Where the time went</h2><p class="note">All updates together, then update by update.</p>'
        f"{share_bar(colours, shares, 'whole run')}{stage_legend(totals)}"
        f'<div class="mid">{stacked_chart(colours, list(_shares(run, stages)), _across(run))}</div>'
    )


def stage_colours(names: Iterable[str]) -> dict[str, int]:
    """Return a colour for every stage."""
    return {name: GREY if name == "other" else (i + (i >= GREY)) % COLOURS for i, name in enumerate(names)}


def stage_legend(totals: Mapping[str, float]) -> str:
    """Name the stages, with their share of the time and their seconds."""
    whole = sum(totals.values())
    return listed(
        (colour, f"{escape(name)}<b>{percent(totals[name] / whole)}</b> {_duration(totals[name])}")
        for name, colour in stage_colours(totals).items()
    )


def _shares(run: Run, stages: Mapping[str, Mapping[float, float]]) -> Iterator[tuple[float, float, list[float]]]:
    """Yield bars of some updates each: from step, to step, share of every stage."""
    steps = sorted({step for stage in stages.values() for step in stage})
    together = math.ceil(len(steps) / _BARS)
    parts = [steps[i : i + together] for i in range(0, len(steps), together)]
    across = _across(run)
    edges = [across.low, *((left[-1] + right[0]) / 2 for left, right in pairwise(parts)), across.high]
    for part, (first, last) in zip(parts, pairwise(edges), strict=True):
        sums = [sum(stage.get(step, 0.0) for step in part) for stage in stages.values()]
        if sum(sums):
            yield first, last, [value / sum(sums) for value in sums]


# -- videos and settings ----------------------------------------------------------------------------------------------


def _videos(run: Run) -> str:
    room = _VIDEO_BYTES
    shown, listed = [], []
    for path in newest_videos(run.folder):
        relative = path.relative_to(run.folder)
        size = path.stat().st_size
        if not size:
            continue  # being written
        if size > room:
            listed.append(f'<li><a href="{escape(quote(str(relative)))}">{escape(str(relative))}</a></li>')
            continue
        room -= size
        # The fragment makes browsers show a frame instead of nothing before it is played.
        data = base64.b64encode(path.read_bytes()).decode() + "#t=0.05"
        shown.append(
            f'<figure><video controls muted loop playsinline preload="metadata" src="data:video/mp4;base64,{data}">'
            f"</video><figcaption>{breakable(str(Path(*relative.parts[1:]).with_suffix('')))}</figcaption></figure>"
        )
    if not shown and not listed:
        return ""
    films = f'<div class="films">{"".join(shown)}</div>' if shown else ""
    files = f'<p class="note">In the folder of the run:</p><ul class="files">{"".join(listed)}</ul>' if listed else ""
    return f"<h2>Videos</h2>{films}{files}"


def _settings(run: Run) -> str:
    rows = []
    first = ("command", "version", "machine", "started", "finished", "finished_because", "policy", "simulator", "tasks")
    known = run.facts.document()
    for name in [*(name for name in first if known.get(name)), *(name for name in known if name not in first)]:
        value = known[name]
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        shown = f"<code>{escape(text)}</code>" if name == "command" else escape(text)
        rows.append(f"<dt>{escape(str(name).replace('_', ' '))}</dt><dd>{shown}</dd>")
    facts = f'<h2>Run</h2><dl class="run">{"".join(rows)}</dl>' if rows else ""
    return facts + (f"<h2>Configuration</h2><pre>{escape(run.config)}</pre>" if run.config.strip() else "")
