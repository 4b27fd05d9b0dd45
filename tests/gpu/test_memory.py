"""Memory that kernels cannot follow, on a GPU: tensors bound at odd addresses, and products of
more than 2^31 rows (70 GB)."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

import onnxbolt
from onnxbolt.tune import cuda
from tests.gpu.prepared import ARCH
from tests.support import Net

pytestmark = pytest.mark.gpu
CUDA = "CUDAExecutionProvider"
WIDTH = 8  # channels: rows of 16 bytes in fp16
PATTERN = (1 << 20) - 1  # rows that are repeated; the row 2^31 before another one differs from it
GIB = 1 << 30
LEFT = 8 * GIB  # for tests of other processes on the same GPU


class Memory:
    """Device memory whose usable part begins `offset` bytes behind an aligned address."""

    def __init__(self, size: int, offset: int = 0) -> None:
        self._base = ctypes.c_uint64()
        cuda._check(
            "cuMemAlloc",
            cuda._driver().cuMemAlloc_v2(ctypes.byref(self._base), ctypes.c_size_t(size + offset)),
        )
        self.address = int(self._base.value) + offset

    def __del__(self) -> None:
        cuda._driver().cuMemFree_v2(self._base)

    def write(self, values: np.ndarray, at: int = 0) -> None:
        cuda._check(
            "cuMemcpyHtoD",
            cuda._driver().cuMemcpyHtoD_v2(
                ctypes.c_uint64(self.address + at),
                ctypes.c_void_p(values.ctypes.data),
                ctypes.c_size_t(values.nbytes),
            ),
        )

    def read(self, values: np.ndarray, at: int = 0) -> np.ndarray:
        cuda._check(
            "cuMemcpyDtoH",
            cuda._driver().cuMemcpyDtoH_v2(
                ctypes.c_void_p(values.ctypes.data),
                ctypes.c_uint64(self.address + at),
                ctypes.c_size_t(values.nbytes),
            ),
        )
        return values

    def repeat(self, size: int, total: int) -> None:
        """The first `size` bytes again and again, up to `total`."""
        while size < total:
            count = min(size, total - size)
            cuda._check(
                "cuMemcpyDtoD",
                cuda._driver().cuMemcpyDtoD_v2(
                    ctypes.c_uint64(self.address + size),
                    ctypes.c_uint64(self.address),
                    ctypes.c_size_t(count),
                ),
            )
            size += count


def need(size: int) -> None:
    """Skips the test where the GPU has less free memory: it is small, or other processes use it.
    They would fail as well if this test took the last of it."""
    free = cuda.free_memory()
    if free < size + LEFT:
        pytest.skip(
            f"takes {size / GIB:.0f} GiB and leaves {LEFT // GIB} to others, and the GPU has"
            f" {free / GIB:.1f} free: run it alone"
        )


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> ort.InferenceSession:
    """One fused GEMM with fp16 ends, of any number of rows."""
    net = Net({"x": ("rows", WIDTH)}, types={"x": 10})
    model = net.model(
        net.node(
            "Cast", net.node("Relu", net.linear(net.node("Cast", "x", to=1), WIDTH, WIDTH)), to=10
        )
    )
    model.graph.output[0].type.tensor_type.elem_type = 10
    path = tmp_path_factory.mktemp("memory") / "out.onnx"
    report = onnxbolt.optimize(model, path, archs=ARCH, fuse="all")
    assert [node.op.partition("_")[0] for node in report.fused] == ["FusedGemm"]
    return ort.InferenceSession(path, onnxbolt.session_options(path, strict=True), providers=[CUDA])


def run(session: ort.InferenceSession, rows: int, x: Memory, y: Memory) -> None:
    binding = session.io_binding()
    binding.bind_input(
        session.get_inputs()[0].name, "cuda", 0, np.float16, (rows, WIDTH), x.address
    )
    binding.bind_output(
        session.get_outputs()[0].name, "cuda", 0, np.float16, (rows, WIDTH), y.address
    )
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()


def pattern() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((PATTERN, WIDTH)).astype(np.float16)


@pytest.mark.parametrize("offset", [2, 8, 14])
def test_tensors_at_odd_addresses(product: ort.InferenceSession, offset: int) -> None:
    x = pattern()[:1000]
    (expected,) = product.run(None, {product.get_inputs()[0].name: x})
    source, target = Memory(x.nbytes, offset), Memory(x.nbytes, offset)
    source.write(x)
    run(product, len(x), source, target)
    np.testing.assert_array_equal(target.read(np.zeros_like(x)), expected)


def test_more_rows_than_32_bits_count(product: ort.InferenceSession) -> None:
    """Every row is one of a pattern's; windows around the slices' ends, 2^31 rows among them,
    are compared with the pattern's results."""
    rows = 2**31 + 3 * PATTERN + 5
    x, row = pattern(), WIDTH * 2
    need(2 * rows * row)
    (expected,) = product.run(None, {product.get_inputs()[0].name: x})
    source, target = Memory(rows * row), Memory(rows * row)
    source.write(x)
    source.repeat(x.nbytes, rows * row)
    run(product, rows, source, target)
    for first in (0, 2**30 - 500, 2**31 - 1500, 2**31 - 500, rows - 1000):
        found = target.read(np.zeros((1000, WIDTH), np.float16), first * row)
        np.testing.assert_array_equal(
            found, expected[np.arange(first, first + 1000) % PATTERN], err_msg=f"rows from {first}"
        )


def test_more_elements_than_32_bits_count(tmp_path: Path) -> None:
    """A pooling of 2^31 elements and more, whose kernel counts them."""
    images = 2**31 // (16 * 64) + 17
    # x in fp32 and fp16, what is pooled, and its result, for which ONNX Runtime's arena may take
    # twice as much
    need(images * 16 * (8 * (4 + 2) + 2 * 2 * 64 * 2))
    net = Net({"x": ("batch", 8, 4, 4)})
    y = net.node(
        "MaxPool",
        net.node("Relu", net.conv("x", 8, 64, 3, pads=[1] * 4)),
        kernel_shape=[3, 3],
        strides=[1, 1],
        pads=[1] * 4,
    )
    model = net.model(net.node("GlobalAveragePool", y))
    path = tmp_path / "out.onnx"
    onnxbolt.optimize(model, path, archs=ARCH, fuse="all", verify=False)
    session = ort.InferenceSession(
        path, onnxbolt.session_options(path, strict=True), providers=[CUDA]
    )
    few = np.random.default_rng(0).standard_normal((63, 8, 4, 4)).astype(np.float32)
    (expected,) = session.run(None, {"x": few})
    (found,) = session.run(None, {"x": np.resize(few, (images, 8, 4, 4))})
    np.testing.assert_allclose(found, np.resize(expected, found.shape), rtol=2e-3, atol=2e-3)
