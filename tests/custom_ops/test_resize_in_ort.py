"""Resizing to sizes that are known at run time, and its epilogue, inside ONNX Runtime. Kernels run
on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest

from tests import library_fixtures as fx
from tests.custom_ops.test_library_in_ort import session


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> fx.HostLibrary:
    ops = [fx.SUMMED, fx.LIKE, fx.GIVEN]
    built = fx.host_library(tmp_path_factory.mktemp("library") / "host.onnxbolt.so", ops)
    built.machine()
    return built


SUMMED = fx.fused_model(
    fx.SUMMED,
    ["N", "H", "W", 3],
    (),
    [[3], ["N", "P", "Q", "C"]],
    sampling=[0, 2, 2],
    scales=[2.0, 1.5],
    epilogue_params=[0.25],
)
LIKE = fx.fused_model(
    fx.LIKE,
    ["N", "H", "W", 3],
    (),
    [["N", "P", "Q", 2], ["N", "R", "S", 3]],
    sampling=[1, 0, 0],
)
GIVEN = fx.fused_model(fx.GIVEN, ["N", "H", "W", 3], (), [[4]], sampling=[1, 2, 0])


def feeds_of(model: onnx.ModelProto, shapes: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    random = np.random.default_rng(2)
    return {
        value.name: random.standard_normal(shape).astype(np.float32)
        for value, shape in zip(model.graph.input, shapes, strict=True)
    }


def same(
    model: onnx.ModelProto, library: fx.HostLibrary, feeds: Mapping[str, np.ndarray]
) -> np.ndarray:
    """The result of the kernel, which has to be that of the body."""
    (ours,) = session(model, library).run(None, feeds)
    (body,) = session(model, None).run(None, feeds)
    np.testing.assert_allclose(ours, body, rtol=1e-5, atol=1e-5)
    result: np.ndarray = ours
    return result


@pytest.mark.parametrize(
    ("x", "tensor", "y"),
    [
        ((2, 5, 7, 3), (2, 10, 10, 3), (2, 10, 10, 3)),
        ((2, 5, 7, 3), (2, 1, 10, 3), (2, 10, 10, 3)),
        ((2, 5, 7, 3), (2, 1, 1, 3), (2, 10, 10, 3)),
    ],
)
def test_a_tensor_of_the_epilogue_broadcasts(
    library: fx.HostLibrary, x: Sequence[int], tensor: Sequence[int], y: Sequence[int]
) -> None:
    assert same(SUMMED, library, feeds_of(SUMMED, [x, tensor])).shape == y


def test_one_resized_pixel_broadcasts(library: fx.HostLibrary) -> None:
    """A pyramid's coarsest image may have a single row, and so its resized one."""
    shapes = [(2, 5, 7, 3), (2, 1, 9, 2), (2, 4, 9, 3)]
    assert same(LIKE, library, feeds_of(LIKE, shapes)).shape == (2, 4, 9, 3)
    shapes = [(2, 5, 7, 3), (2, 1, 1, 2), (2, 4, 9, 3)]
    assert same(LIKE, library, feeds_of(LIKE, shapes)).shape == (2, 4, 9, 3)


@pytest.mark.parametrize("tensor", [(2, 9, 10, 3), (1, 10, 10, 3), (2, 10, 10, 4)])
def test_other_tensors_of_the_epilogue_are_refused(
    library: fx.HostLibrary, tensor: Sequence[int]
) -> None:
    feeds = feeds_of(SUMMED, [(2, 5, 7, 3), tensor])
    with pytest.raises(Exception, match=r"'the node'.*input 2 has shape .* does not broadcast"):
        session(SUMMED, library).run(None, feeds)


@pytest.mark.parametrize("sizes", [(2, 3, 8, 5), (2, 3, 1, 1), (2, 3, 5, 7), (2, 3, 0, 4)])
def test_sizes_are_read_at_run_time(library: fx.HostLibrary, sizes: Sequence[int]) -> None:
    x = np.random.default_rng(3).standard_normal((2, 5, 7, 3)).astype(np.float32)
    feeds: dict[str, np.ndarray] = {"x": x, "input0": np.array(sizes, np.int64)}
    if 0 in sizes:  # ONNX Runtime's own kernel refuses it
        (y,) = session(GIVEN, library).run(None, feeds)
    else:
        y = same(GIVEN, library, feeds)
    assert y.shape == (2, sizes[2], sizes[3], 3)


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ((1, 3, 8, 5), r"1 images are wanted of x \[2,5,7,3\]"),
        ((2, 3, -1, 5), "sizes of a resizing are negative"),
        ((2, 3, 8), r"input 1 has shape \[3\], expected \[4\]"),
    ],
)
def test_impossible_sizes_are_refused(
    library: fx.HostLibrary, sizes: Sequence[int], text: str
) -> None:
    given = np.array(sizes, np.int64)
    feeds = {"x": np.ones((2, 5, 7, 3), np.float32), "input0": given}
    model = fx.fused_model(fx.GIVEN, ["N", "H", "W", 3], (), [["K"]], sampling=[1, 2, 0])
    with pytest.raises(Exception, match=f"'the node'.*{text}"):
        session(model, library).run(None, feeds)


def test_a_launch_of_few_images_reads_their_part_of_the_epilogue(
    library: fx.HostLibrary,
) -> None:
    feeds = feeds_of(SUMMED, [(3, 5, 7, 3), (3, 1, 10, 3)])
    one = session(SUMMED, library)
    (whole,) = one.run(None, feeds)
    library.limit(1)
    try:
        (sliced,) = one.run(None, feeds)
    finally:
        library.limit()
    np.testing.assert_array_equal(whole, sliced)
