"""Normalizations of embeddings inside ONNX Runtime: indices and tables, broadcast indices, slices
of a launch, shapes, refusals. Kernels run on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

from tests import library_fixtures as fx
from tests.custom_ops.test_library_in_ort import inferred, session

BATCH, LENGTH, WIDTH, WORDS, PLACES = 3, 5, 24, 11, 6


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> fx.HostLibrary:
    ops = (fx.EMBEDDING_NORM, fx.EMBEDDING_RMS_NORM)
    return fx.host_library(tmp_path_factory.mktemp("library") / "host.onnxbolt.so", ops)


@pytest.fixture
def library(built: fx.HostLibrary) -> Iterator[fx.HostLibrary]:
    built.machine()
    yield built
    built.limit()


def _model(places: tuple[int | str, ...] = ("b", "s"), **attributes: Any) -> onnx.ModelProto:
    """Words, positions, constant rows; the sum is stored."""
    operands = [("V", "C"), places, ("P", "D"), ("R", "E"), [WIDTH], [WIDTH]]
    given = {"epsilon": 0.25, "columns": WIDTH, **attributes}
    return fx.fused_model(fx.EMBEDDING_NORM, ["B", "S"], (), operands, rank=3, **given)


def _feeds(places: tuple[int, ...] = (BATCH, LENGTH)) -> dict[str, np.ndarray]:
    """Indices on both sides of zero."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    return {
        "x": random.integers(-WORDS, WORDS, (BATCH, LENGTH)),
        "input0": normal(WORDS, WIDTH),
        "input1": random.integers(-PLACES, PLACES, places),
        "input2": normal(PLACES, WIDTH),
        "input3": normal(LENGTH, WIDTH),
    }


def _agree(library: fx.HostLibrary, model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    """Kernel and body, the sum included."""
    ours, body = (session(model, held).run(None, feeds) for held in (library, None))
    for got, expected in zip(ours, body, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("places", [(BATCH, LENGTH), (1, LENGTH), (BATCH, 1), (LENGTH,), (1, 1)])
@pytest.mark.parametrize("sequences", [BATCH, 1])
def test_kernel_agrees_with_body(
    library: fx.HostLibrary, places: tuple[int, ...], sequences: int
) -> None:
    """Indices of a further table broadcast, also where a launch is cut into slices."""
    library.limit(sequences)
    before = library.launches
    _agree(library, _model(tuple(f"d{i}" for i in range(len(places)))), _feeds(places))
    assert library.launches == before + BATCH // sequences


def test_indices_of_32_bits(library: fx.HostLibrary) -> None:
    operands = [("V", "C"), [WIDTH]]
    model = fx.fused_model(
        fx.EMBEDDING_RMS_NORM, ["B", "S"], (), operands, rank=3, epsilon=0.25, columns=WIDTH
    )
    feeds = _feeds()
    _agree(library, model, {"x": feeds["x"].astype(np.int32), "input0": feeds["input0"]})


def test_an_index_out_of_range_adds_nothing(library: fx.HostLibrary) -> None:
    """As in ONNX Runtime's CUDA provider; its CPU provider, which runs the body, refuses it."""
    feeds = _feeds()
    feeds["x"][0, :3] = WORDS, -WORDS - 1, np.iinfo(np.int64).min
    expected = feeds["input2"][feeds["input1"]] + feeds["input3"]
    known = (feeds["x"] >= -WORDS) & (feeds["x"] < WORDS)
    expected[known] += feeds["input0"][feeds["x"][known]]
    _, total = session(_model(), library).run(None, feeds)
    np.testing.assert_allclose(total, expected, rtol=1e-6, atol=1e-6)


def test_no_sequences_are_no_launch(library: fx.HostLibrary) -> None:
    before, feeds = library.launches, _feeds((1, LENGTH))
    y, _ = session(_model(), library).run(None, feeds | {"x": feeds["x"][:0]})
    assert y.shape == (0, LENGTH, WIDTH)
    assert library.launches == before


def test_shapes_follow_symbols(library: fx.HostLibrary) -> None:
    assert inferred(_model(), library) == ["B", "S", WIDTH]
    assert inferred(_model(), library, "stored") == ["B", "S", WIDTH]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"input0": (WORDS, 20)}, r"input 1 has shape \[11,20\], expected \[11,24\]"),
        ({"input2": (PLACES, 20)}, r"input 3 has shape \[6,20\], expected \[6,24\]"),
        ({"input3": (LENGTH + 1, WIDTH)}, r"input 4 has shape \[6,24\], expected \[5,24\]"),
        ({"input1": (2, LENGTH)}, r"\[2,5\], which does not broadcast to \[3,5\]"),
        ({"input1": (BATCH, 4)}, r"\[3,4\], which does not broadcast to \[3,5\]"),
    ],
)
def test_shapes_are_checked(
    library: fx.HostLibrary, changed: dict[str, tuple[int, ...]], message: str
) -> None:
    feeds = _feeds()
    for name, shape in changed.items():
        feeds[name] = np.zeros(shape, feeds[name].dtype)
    with pytest.raises(Exception, match=message):
        session(_model(), library).run(None, feeds)


def test_columns_are_checked(library: fx.HostLibrary) -> None:
    with pytest.raises(Exception, match="attribute columns is missing or not positive"):
        session(_model(columns=0), library)
