"""Make the picture of `manyarms watch`: four tasks being learnt, photographed while they are.

python docs/images/watch.py     # some minutes; needs playwright, Chromium and pillow; writes docs/images/watch.png
"""

from __future__ import annotations

import io
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import expect, sync_playwright

from manyarms.reporting.runs import read_metrics
from manyarms.reporting.site import Watcher

UPDATES = 24
WIDTH, HEIGHT = 1360, 850
OUT = Path(__file__).with_suffix(".png")

_SETTINGS = (
    *("runner.max_steps=60", "runner.val_check_interval=4", "runner.logger.logger_backends=[]"),
    *("env.train.options.cameras=[front]", "env.train.options.image_size=[96,96]", "env.train.max_episode_steps=60"),
    *("algorithm.episodes_per_step=64", "env.eval.episodes=20", "env.eval.max_episode_steps=60"),
    *("runner.logger.experiment_name=four_tasks_grpo",),
)


def photograph(folder: Path) -> bytes:
    """Return the page of a run, once every environment has been seen."""
    with Watcher(folder, port=0) as watcher, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=1.5)
        page.goto(watcher.url)
        environments = page.locator(".process").first
        expect(environments.locator(".tile")).not_to_have_count(0, timeout=60_000)
        expect(environments.locator("canvas[hidden]")).to_have_count(0, timeout=120_000)
        page.wait_for_timeout(3000)
        picture = page.screenshot()
        browser.close()
    return picture


def main() -> None:
    """Train until there is something to see, take the picture, and end the run."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "four_tasks_grpo"
        words = [sys.executable, "-m", "manyarms", "train", "four_tasks_grpo", f"runner.logger.log_path={root}"]
        process = subprocess.Popen([*words, *_SETTINGS])
        try:
            while process.poll() is None and len(read_metrics(folder)) <= UPDATES:
                time.sleep(0.5)
            picture = Image.open(io.BytesIO(photograph(folder))).convert("RGB")
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()
    picture.quantize(256, dither=Image.Dither.NONE).save(OUT, optimize=True)
    print(f"{OUT}: {OUT.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
