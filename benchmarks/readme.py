"""The comparison of the READMEs, from what the other benchmarks measured; ``python benchmarks/readme.py`` renews it."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MARKERS = ("<!-- benchmarks/readme.py: begin -->", "<!-- benchmarks/readme.py: end -->")


@dataclass(frozen=True)
class Words:
    """What the table says, in one language."""

    head: tuple[str, ...]
    over: str
    """When a worker dies."""
    ours: str
    yes: str
    no: str
    unmeasured: str


ENGLISH = Words(
    head=("manyarms is faster than", "hand-over ¹", "16 actions a look ²", "LIBERO ³", "a worker dies", "trains"),
    over="`EOFError`, run over",
    ours="**named, replaced; one episode lost**",
    yes="yes",
    no="no",
    unmeasured="–",
)
CHINESE = Words(
    head=("manyarms 比它快", "数据交接 ¹", "一次观测 16 个动作 ²", "LIBERO ³", "某个 worker 死掉", "能训练"),
    over="`EOFError`，整个运行终止",
    ours="**指明原因并重启，只丢一个回合**",
    yes="能",
    no="不能",
    unmeasured="–",
)


def table(words: Words, vector: dict[str, Any], libero: dict[str, Any]) -> str:
    """Return how many times as fast ours is as each of the others, and what else tells them apart."""
    images, cameras = vector["null_images:8"]["1"], vector["mujoco:2"]
    rounds = libero["rounds"]
    factors = [a / b for a, b in zip(rounds["manyarms, once a chunk, fast"], rounds[SUBPROC], strict=True)]
    on_libero = f"**{statistics.median(factors):.0f} ×** ({min(factors):.0f}\u00a0–\u00a0{max(factors):.0f})"

    def times(peer: str) -> tuple[str, str]:
        handed = _rate(images, "manyarms") / _rate(images, peer)
        looked = _rate(cameras["16"], "manyarms, a simulator") / _rate(cameras["1"], peer)
        return f"**{handed:.1f} ×**", f"**{looked:.1f} ×**"

    nothing = words.unmeasured
    rows = [
        ("Gymnasium `AsyncVectorEnv`", *times("gymnasium AsyncVectorEnv"), nothing, words.over, words.no),
        (
            "Stable-Baselines3 `SubprocVecEnv`",
            *times("stable-baselines3 SubprocVecEnv"),
            nothing,
            words.over,
            words.yes,
        ),
        ("LIBERO `SubprocVectorEnv`", *times(PIPES), on_libero, words.over, words.no),
        ("RIPT-VLA ⁴", nothing, nothing, on_libero, words.over, words.yes),
        ("RLinf ⁴", nothing, nothing, on_libero, nothing, words.yes),
        ("**manyarms**", "1", "1", "1", words.ours, words.yes),
    ]
    head = f"| {' | '.join(words.head)} |\n|---|---:|---:|---:|---|---|\n"
    return head + "".join(f"| {' | '.join(row)} |\n" for row in rows)


SUBPROC = "LIBERO's SubprocVectorEnv"
PIPES = f"pipe and pickle (as {SUBPROC})"


def _rate(peers: dict[str, Any], name: str) -> float:
    return peers[name]["env_steps_per_second"]


def renewed(text: str, table: str) -> str:
    """Return a README with the table between its markers."""
    before, _, rest = text.partition(MARKERS[0])
    return f"{before}{MARKERS[0]}\n{table}{MARKERS[1]}{rest.partition(MARKERS[1])[2]}"


def pages() -> dict[Path, str]:
    """Return both READMEs as they should be."""
    measured = ROOT / "docs/benchmarks"
    vector = json.loads((measured / "vector.json").read_text())["results"]
    libero = json.loads((measured / "libero.json").read_text())
    languages = {ROOT / "README.md": ENGLISH, ROOT / "README.zh-CN.md": CHINESE}
    return {path: renewed(path.read_text(), table(words, vector, libero)) for path, words in languages.items()}


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text)
