"""Contact sheets: what is where in them, and what they weigh."""

from __future__ import annotations

import io
from pathlib import Path

import av
import numpy as np
import pytest

from manyarms.reporting.live import ContactSheet, forget_earlier, jpeg, scaled_down


def decoded(data: bytes) -> np.ndarray:
    with av.open(io.BytesIO(data), "r", format="mjpeg") as container:
        return next(container.decode(video=0)).to_ndarray(format="rgb24")


def coloured(colours: list[tuple[int, int, int]], height: int, width: int) -> np.ndarray:
    return np.stack([np.full((height, width, 3), colour, np.uint8) for colour in colours])


@pytest.mark.parametrize(
    ("height", "width", "tile"),
    [
        (64, 64, (64, 64)),
        (96, 96, (96, 96)),
        (97, 97, (48, 48)),
        (256, 256, (85, 85)),
        (480, 640, (68, 91)),
        (4, 6, (4, 6)),
    ],
)
def test_tiles_keep_their_shape_and_are_no_wider_than_a_thumb(height: int, width: int, tile: tuple[int, int]) -> None:
    sheet = ContactSheet(np.zeros((3, height, width, 3), np.uint8))
    assert (sheet.height, sheet.width) == tile
    assert sheet.picture().shape == (2 * tile[0], 2 * tile[1], 3)


def test_a_pixel_of_a_tile_is_the_mean_of_those_it_stands_for() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (2, 7, 11, 3)).astype(np.uint8)
    small = scaled_down(frames, 3)
    assert small.shape == (2, 2, 3, 3)
    assert small[1, 1, 2].tolist() == (frames[1, 3:6, 6:9].astype(int).sum((0, 1)) // 9).tolist()


def test_every_row_is_found_at_its_place_in_the_encoded_sheet() -> None:
    colours = [(220, 20, 20), (20, 220, 20), (20, 20, 220), (0, 0, 0), (230, 230, 20)]
    sheet = ContactSheet(coloured(colours, 64, 48))
    assert sheet.update()
    assert sheet.columns == 3
    picture = decoded(jpeg(sheet.picture()))
    assert picture.shape == (2 * 64, 3 * 48, 3)
    for place, colour in enumerate(colours):
        top, left = place // 3 * 64, place % 3 * 48
        found = picture[top + 8 : top + 56, left + 8 : left + 40].mean((0, 1))
        assert found == pytest.approx(colour, abs=6), place
    assert sheet.shown.tolist() == [True, True, True, False, True], "what is black was never drawn"


def test_a_sheet_is_drawn_again_only_when_a_frame_has_changed() -> None:
    frames = coloured([(9, 9, 9), (8, 8, 8)], 32, 32)
    sheet = ContactSheet(frames)
    assert sheet.update()
    assert not sheet.update()
    frames[1] = 7
    assert sheet.update()


def test_what_an_earlier_run_left_goes_but_the_one_who_watches_stays(tmp_path: Path) -> None:
    forget_earlier(tmp_path)
    live = tmp_path / "live"
    live.mkdir()
    for name in ("rank-0.json", "rank-0.jpg", ".rank-3.json.77", "watched"):
        (live / name).touch()
    forget_earlier(tmp_path)
    assert [path.name for path in live.iterdir()] == ["watched"]
