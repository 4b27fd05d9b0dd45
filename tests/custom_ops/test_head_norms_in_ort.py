"""Normalizations of heads inside ONNX Runtime: places of heads, the rotation, slices of a launch,
shapes, refusals. Kernels run on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx
import pytest

from tests import library_fixtures as fx
from tests.custom_ops.test_library_in_ort import inferred, session

BATCH, LENGTH, HEADS, SIZE = 3, 4, 2, 8
PITCH = 2 * SIZE  # the second half of a group of columns is a head
WIDTH, COLUMNS = 5 * PITCH, HEADS * SIZE
VIEW = [PITCH, 1, SIZE, 1 + HEADS, PITCH]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> fx.HostLibrary:
    ops = (fx.HEAD_NORM, fx.ROTATED_HEAD_NORM)
    return fx.host_library(tmp_path_factory.mktemp("library") / "host.onnxbolt.so", ops)


@pytest.fixture
def library(built: fx.HostLibrary) -> Iterator[fx.HostLibrary]:
    built.machine()
    yield built
    built.limit()


def _apart(view: Sequence[int] = VIEW, columns: int = COLUMNS) -> onnx.ModelProto:
    """Some heads among others, y [B, S, H, D]."""
    return fx.fused_model(
        fx.HEAD_NORM,
        ["B", "S", "N"],
        (),
        [[columns], [columns]],
        rank=4,
        epsilon=0.25,
        view=view,
        apart=1,
    )


def _rotated(columns: int = COLUMNS) -> onnx.ModelProto:
    """Nothing but heads, y [B, S, H x D]."""
    return fx.fused_model(
        fx.ROTATED_HEAD_NORM,
        ["B", "S", COLUMNS],
        (),
        [[COLUMNS], ["T", "P", SIZE]],
        epsilon=0.25,
        view=[SIZE, 0, 0, HEADS, SIZE],
        rotated_columns=columns,
    )


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _agree(library: fx.HostLibrary, model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    (ours,), (body,) = (session(model, held).run(None, feeds) for held in (library, None))
    np.testing.assert_allclose(ours, body, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batches", [BATCH, 1])
def test_heads_among_others(library: fx.HostLibrary, batches: int) -> None:
    """Also where a launch is cut into slices."""
    library.limit(batches * LENGTH)
    before = library.launches
    _agree(library, _apart(), {"x": _normal(BATCH, LENGTH, WIDTH)})
    assert library.launches == before + BATCH // batches


@pytest.mark.parametrize("table", [(1, LENGTH), (BATCH, LENGTH), (1, 1)])
@pytest.mark.parametrize("columns", [COLUMNS, SIZE])
@pytest.mark.parametrize("batches", [BATCH, 1])
def test_rotated_heads(
    library: fx.HostLibrary, table: tuple[int, int], columns: int, batches: int
) -> None:
    library.limit(batches * LENGTH)
    feeds = {"x": _normal(BATCH, LENGTH, COLUMNS), "input1": _normal(*table, SIZE)}
    _agree(library, _rotated(columns), feeds)


def test_no_tokens_are_no_launch(library: fx.HostLibrary) -> None:
    before = library.launches
    (y,) = session(_apart(), library).run(None, {"x": _normal(0, LENGTH, WIDTH)})
    assert y.shape == (0, LENGTH, HEADS, SIZE)
    assert library.launches == before


def test_shapes_follow_symbols(library: fx.HostLibrary) -> None:
    assert inferred(_apart(), library) == ["B", "S", HEADS, SIZE]
    assert inferred(_rotated(), library) == ["B", "S", COLUMNS]


@pytest.mark.parametrize(
    ("model", "width", "message"),
    [
        (_apart(view=[16]), WIDTH, "attribute view is missing or damaged"),
        (_apart(view=[16, 1, 8, 1, 16]), WIDTH, "attribute view is missing or damaged"),
        (_apart(view=[16, 1, 8, 3, 17]), WIDTH, "attribute view is missing or damaged"),
        (_apart(), 2 * PITCH, r"\[3,4,32\], and not the heads of attribute view"),
        (_apart(columns=24), WIDTH, r"input 1 has shape \[24\], expected \[16\]"),
        (_rotated(17), COLUMNS, "attribute rotated_columns is 17"),
    ],
)
def test_nodes_are_checked(
    library: fx.HostLibrary, model: onnx.ModelProto, width: int, message: str
) -> None:
    feeds = {"x": _normal(BATCH, LENGTH, width)}
    if len(model.graph.input) > 1:
        feeds["input1"] = _normal(1, LENGTH, SIZE)
    with pytest.raises(Exception, match=message):
        session(model, library).run(None, feeds)
