"""Tensors that lie or reach where kernels cannot follow: copies in aligned memory, and launches
in slices. Kernels run on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests import library_fixtures as fx
from tests.custom_ops.test_library_in_ort import CASES, session

STORED: dict[str, fx.Case] = {
    "gemm stored": (
        fx.fused_model(
            fx.GEMM_STORED, ["B", "S", 24], (16, 24), [[16], ["B", "S", 16], [8, 16], [8]]
        ),
        [(2, 5, 24), (2, 5, 16), (8, 16)],
    ),
    "both forms": (
        fx.fused_model(
            fx.BOTH,
            ["N", 7, 9, 8],
            (6, 3, 3, 8),
            [[6]],
            rank=4,
            strides=[1, 1],
            pads=[1, 1, 1, 1],
            dilations=[1, 1],
            group=1,
            padding=3,
        ),
        [(2, 7, 9, 8)],
    ),
    "mean": (
        fx.fused_model(
            fx.CONV_MEAN,
            ["N", 7, 9, 8],
            (6, 3, 3, 8),
            [[6], ["N", 7, 9, 6]],
            strides=[1, 1],
            pads=[1, 1, 1, 1],
            dilations=[1, 1],
            group=1,
        ),
        [(2, 7, 9, 8), (2, 7, 9, 6)],
    ),
}
ALL: dict[str, fx.Case] = CASES | STORED
BATCH = 11  # a prime: the last slice is another one


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> fx.HostLibrary:
    ops = [*fx.ALL, fx.BOTH, fx.CONV_MEAN]
    return fx.host_library(tmp_path_factory.mktemp("library") / "host.onnxbolt.so", ops)


@pytest.fixture
def library(built: fx.HostLibrary) -> Iterator[fx.HostLibrary]:
    built.machine()
    yield built
    built.limit()


def feeds_of(model: onnx.ModelProto, shapes: Sequence[tuple[int, ...]]) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {
        value.name: random.standard_normal(shape).astype(np.float32)
        for value, shape in zip(model.graph.input, shapes, strict=True)
    }


def unaligned(values: np.ndarray) -> np.ndarray:
    """The same values, four bytes behind a multiple of 16."""
    memory = np.zeros(values.nbytes + 32, np.uint8)
    start = (4 - memory.ctypes.data) % 16
    copy = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    assert copy.ctypes.data % 16 == 4
    return copy


def bound(
    one: ort.InferenceSession, feeds: dict[str, np.ndarray], outputs: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Results in memory of the user's, read where the user has them."""
    binding = one.io_binding()
    for name, values in feeds.items():
        binding.bind_input(name, "cpu", 0, values.dtype, values.shape, values.ctypes.data)
    for output, like in zip(one.get_outputs(), outputs, strict=True):
        binding.bind_output(output.name, "cpu", 0, like.dtype, like.shape, like.ctypes.data)
    one.run_with_iobinding(binding)
    return list(outputs)


def batched(model: onnx.ModelProto, shapes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The shapes with another batch, where the model's first dimension is one."""
    first = model.graph.input[0].type.tensor_type.shape.dim[0]
    if not first.dim_param:
        return list(shapes)
    return [
        (BATCH, *shape[1:]) if value.type.tensor_type.shape.dim[0].dim_param else shape
        for shape, value in zip(shapes, model.graph.input, strict=True)
    ]


@pytest.mark.parametrize("case", ALL)
def test_unaligned_tensors_go_through_copies(library: fx.HostLibrary, case: str) -> None:
    model, shapes = ALL[case]
    feeds = feeds_of(model, shapes)
    one = session(model, library)
    expected = one.run(None, feeds)
    before = library.copies
    lying = {name: unaligned(values) for name, values in feeds.items()}
    results = bound(one, lying, [unaligned(np.zeros_like(values)) for values in expected])
    for result, values in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, values)
    unread = case == "resize like another image"  # the kernel reads that image's shape alone
    assert library.copies == before + len(feeds) - unread + len(expected)


def test_aligned_tensors_are_not_copied(library: fx.HostLibrary) -> None:
    model, shapes = CASES["gemm"]
    feeds = {name: np.ascontiguousarray(values) for name, values in feeds_of(model, shapes).items()}
    one = session(model, library)
    one.run(None, feeds)
    before = library.copies
    bound(
        one,
        {name: aligned(values) for name, values in feeds.items()},
        [aligned(np.zeros((2, 5, 16), np.float32))],
    )
    assert library.copies == before


def aligned(values: np.ndarray) -> np.ndarray:
    memory = np.zeros(values.nbytes + 16, np.uint8)
    start = -memory.ctypes.data % 16
    copy = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy


def is_batched(case: str) -> bool:
    return bool(ALL[case][0].graph.input[0].type.tensor_type.shape.dim[0].dim_param)


@pytest.mark.parametrize(
    ("case", "limit"),
    [(case, limit) for case in ALL for limit in (1, 3) if limit == 1 or is_batched(case)],
)
def test_what_a_kernel_cannot_count_is_launched_in_slices(
    library: fx.HostLibrary, case: str, limit: int
) -> None:
    model, shapes = ALL[case]
    feeds = feeds_of(model, batched(model, shapes))
    one = session(model, library)
    expected = one.run(None, feeds)
    library.limit(limit)
    before = library.launches
    sliced = one.run(None, feeds)
    assert library.launches > before + 1
    for result, values in zip(sliced, expected, strict=True):
        np.testing.assert_allclose(result, values, rtol=1e-6, atol=1e-6)


def test_one_image_that_is_too_large_is_refused(library: fx.HostLibrary) -> None:
    model, shapes = CASES["conv"]
    library.limit(0)
    with pytest.raises(
        Exception, match=r"'the node'.*x \[2,9,11,8\]: an extent exceeds the test's"
    ):
        session(model, library).run(None, feeds_of(model, shapes))


def test_unaligned_and_in_slices(library: fx.HostLibrary) -> None:
    model, shapes = CASES["gemm with residual"]
    feeds = feeds_of(model, shapes)
    one = session(model, library)
    (expected,) = one.run(None, feeds)
    library.limit(2)
    before = library.copies
    (result,) = bound(
        one,
        {name: unaligned(values) for name, values in feeds.items()},
        [unaligned(np.zeros_like(expected))],
    )
    np.testing.assert_array_equal(result, expected)
    assert library.copies == before + 3  # once each, whatever the number of slices
