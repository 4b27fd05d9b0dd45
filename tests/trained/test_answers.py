"""Raw outputs of detectors, text models and speech models, as their users read them."""

from __future__ import annotations

import io
import wave

import numpy as np
import pytest
from PIL import Image

from tests.trained import boxes, cases, images, speech, text
from tests.trained.agreement import Array, Box, quadrangle_iou


def sides(found: list[Box]) -> list[list[float]]:
    return [[*box.corners[0], *box.corners[2]] for box in found]


def test_the_best_of_overlapping_boxes_is_kept() -> None:
    corners = np.array([(0, 0, 10, 10), (1, 0, 11, 10), (50, 0, 60, 10), (0, 0, 10, 10)], float)
    scores = np.array([0.8, 0.9, 0.5, 0.1])
    assert boxes.suppressed(corners, scores, 0.5) == [1, 2]
    assert boxes.suppressed(corners, scores, 0.9) == [1, 0, 2]
    found = boxes.chosen(corners, scores, ["a", "b", "c", "d"], 0.6, 0.5)
    assert [(box.label, box.corners[0][0]) for box in found] == [("b", 1)]
    assert boxes.chosen(corners[:0], scores[:0], [], 0.6, 0.5) == []


def test_faces() -> None:
    scores = np.array([(0.1, 0.9), (0.6, 0.4)])
    corners = np.array([(0.25, 0.5, 0.5, 1.0), (0, 0, 1, 1)])
    assert sides(boxes.faces(scores, corners, 400, 100)) == [[100, 50, 200, 100]]


def test_fastest_det() -> None:
    planes = np.zeros((85, 4, 4))
    planes[0, 1, 2], planes[5 + 7, 1, 2] = 1.0, 0.9  # a box of half the image around (2, 1)
    (box,) = boxes.of_fastest_det(planes, 80, 40)
    assert (box.label, sides([box])) == ("7", [[20, 0, 60, 20]])


def test_yolox() -> None:
    cells = np.zeros((16 + 4 + 1, 85))
    cells[16 + 3] = [0.5, 0.25, np.log(2), 0, 0.9, *np.eye(80)[5]]  # stride 16, cell (1, 1)
    (box,) = boxes.of_yolox(cells, 32, scale=0.5)
    assert box.label == "5"
    np.testing.assert_allclose(sides([box]), [[16, 24, 80, 56]])


def test_plates() -> None:
    rows = np.zeros((2, 15))
    rows[0, [0, 1, 2, 3, 4, 14]] = 60, 50, 40, 20, 0.8, 0.9
    (box,) = boxes.plates(rows, 0.5, (10, 20))
    assert (box.label, sides([box])) == ("two lines", [[60, 40, 140, 80]])


@pytest.mark.parametrize(
    ("best", "blank", "expected"),
    [
        ([0, 1, 1, 0, 1, 2, 0], 0, "aab"),
        ([3, 0, 0, 3, 0, 1, 2, 2], 3, "aabc"),
        ([0, 0], 0, ""),
    ],
)
def test_repeated_characters_and_blanks(best: list[int], blank: int, expected: str) -> None:
    assert text.decoded(np.array(best), "abc", blank) == expected


def test_alphabets_have_every_class_but_the_blank() -> None:
    assert [len(a) + 1 for a in (cases.ENGLISH, cases.LPRNET, cases.PLATE_COLOR)] == [97, 68, 78]
    assert all(
        len(set(alphabet)) == len(alphabet) for alphabet in (cases.LPRNET, cases.PLATE_COLOR)
    )


def test_regions_are_connected_by_corners() -> None:
    rows = ["##.....#", "..#...##", "#.......", "##.##.##", ".#..#..#", "..##...."]
    mask = np.array([[mark == "#" for mark in row] for row in rows])
    found = [{(int(x), int(y)) for x, y in region} for region in text.regions(mask)]
    assert sorted(map(len, found)) == [3, 3, 3, 9]
    assert {(0, 0), (1, 0), (2, 1)} in found
    assert {(7, 0), (6, 1), (7, 1)} in found
    assert {(6, 3), (7, 3), (7, 4)} in found
    assert set().union(*found) == {(int(x), int(y)) for y, x in np.argwhere(mask)}


@pytest.mark.parametrize("degrees", [0, 17, -30, 44])
def test_a_turned_line_of_text(degrees: float) -> None:
    """Pixels of a rectangle, turned around the middle, give that rectangle."""
    turn, centre = np.deg2rad(degrees), np.array([100, 100])
    axes = np.array([(np.cos(turn), np.sin(turn)), (-np.sin(turn), np.cos(turn))])
    expected = np.array([(-60, -10), (60, -10), (60, 10), (-60, 10)]) @ axes + centre
    y, x = np.mgrid[:200, :200]
    own = (np.stack([x, y], axis=-1) + 0.5 - centre) @ axes.T
    probabilities = np.where((np.abs(own[..., 0]) < 60) & (np.abs(own[..., 1]) < 10), 0.9, 0.0)
    (box,) = text.text_boxes(probabilities, (1.0, 1.0), ratio=0.0)
    assert quadrangle_iou(box.corners, expected) > 0.9
    np.testing.assert_allclose(box.corners, expected, atol=2)
    (half,) = text.text_boxes(probabilities, (2.0, 2.0), ratio=0.0)
    np.testing.assert_allclose(half.corners, box.corners / 2)
    (grown,) = text.text_boxes(probabilities, (1.0, 1.0), ratio=2.0)
    gain = np.linalg.norm(grown.corners[1] - grown.corners[0]) - np.linalg.norm(
        box.corners[1] - box.corners[0]
    )
    assert gain == pytest.approx(2 * 120 * 20 * 2.0 / 280, rel=0.1)


def test_faint_and_small_regions_are_no_text() -> None:
    probabilities = np.zeros((50, 50))
    probabilities[10:20, 10:40] = 0.45
    probabilities[30:32, 10:40] = 0.9
    assert text.text_boxes(probabilities, (1.0, 1.0), ratio=1.5) == []


def test_a_line_from_the_top_down_is_turned() -> None:
    corners = np.array([(0, 0), (10, 0), (10, 40), (0, 40)], float)
    turned, width, height = text.upright_size(corners)
    assert (width, height) == (40, 10)
    np.testing.assert_array_equal(turned, [(10, 0), (10, 40), (0, 40), (0, 0)])
    assert text.upright_size(turned)[1:] == (40, 10)


def test_images() -> None:
    image = np.zeros((4, 8, 3), np.uint8)
    image[:, 4:, 0] = 255
    file = io.BytesIO()
    Image.fromarray(image).save(file, "png")
    np.testing.assert_array_equal(images.decoded(file.getvalue()), image)
    np.testing.assert_array_equal(images.resized(image, 8, 4), image)
    right = np.array([(4, 0), (8, 0), (8, 4), (4, 4)])
    assert (images.cropped(image, right, 6, 6)[:, 1:, 0] == 255).all()
    upside_down = images.cropped(image, np.array([(8, 4), (0, 4), (0, 0), (8, 0)]), 8, 4)
    np.testing.assert_array_equal(upside_down, image[::-1, ::-1])
    square, scale, place = images.letterboxed(image, 16, 9, centred=True)
    assert (scale, place) == (2.0, (0, 4))
    assert (square[:4] == 9).all()
    assert (square[4:12, 10:, 0] == 255).all()
    assert images.letterboxed(image, 16, 9, centred=False)[2] == (0, 0)
    tensor = images.tensor(image, (1, 2, 3), (4, 5, 6), blue_first=True)
    assert tensor.shape == (1, 3, 4, 8)
    np.testing.assert_allclose(tensor[0, :, 0, 7], [-1 / 4, -2 / 5, (255 - 3) / 6], rtol=1e-6)


def test_windows_of_a_recording() -> None:
    """Each window comes with the end of the one before, and the state goes round."""
    seen = []

    def step(window: Array, state: Array) -> tuple[float, Array]:
        seen.append((window.shape, window[0, 0], window[0, -1], state[0, 0, 0]))
        return 0.5, state + 1

    recording = np.arange(1, 1101, dtype=np.float32)
    assert speech.probabilities(recording, step) == [0.5] * 3
    shape = (1, speech.WINDOW + speech.CONTEXT)
    assert seen == [(shape, 0, 512, 0), (shape, 449, 1024, 1), (shape, 961, 0, 2)]


def test_segments_of_speech() -> None:
    """Speech of 10 windows, a pause that is too short, 2 windows, a silence; then a cry."""
    marks = (
        [0.1] * 4 + [0.9] * 10 + [0.1] * 2 + [0.45, 0.6, 0.6] + [0.2] * 8 + [0.9] * 3 + [0.1] * 8
    )
    length = len(marks) * speech.WINDOW
    assert speech.segments(marks, length) == [(4 * 512 - 480, 19 * 512 + 480)]
    assert speech.segments([0.9] * 20, 20 * 512) == [(0, 20 * 512)]
    assert speech.segments([0.45] * 20, 20 * 512) == []
    # margins share a pause that is shorter than both
    near = [0.9] * 10 + [0.1] * 8 + [0.9] * 10
    first, second = speech.segments(near, 28 * 512)
    assert (first, second) == ((0, 10 * 512 + 480), (18 * 512 - 480, 28 * 512))


def test_recordings() -> None:
    def recorded(rate: int) -> bytes:
        file = io.BytesIO()
        with wave.open(file, "wb") as writer:
            writer.setnchannels(1)
            writer.setsampwidth(2)
            writer.setframerate(rate)
            writer.writeframes(np.array([0, 16384, -32768], "<i2").tobytes())
        return file.getvalue()

    np.testing.assert_array_equal(speech.samples(recorded(16000)), [0, 0.5, -1])
    with pytest.raises(ValueError, match="8000"):
        speech.samples(recorded(8000))
