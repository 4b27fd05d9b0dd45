"""A product of rows that are no multiples of 16 bytes: read as they are where a kernel does
that, else padded."""

from __future__ import annotations

import pytest

from tests.support import Net, assert_same, ops


def _product(net: Net, x: str, k: int, n: int) -> str:
    return net.node("Relu", net.linear(x, k, n))


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize(("k", "n"), [(429, 256), (13, 64)])
def test_rows_are_read_as_they_are(k: int, n: int, precision: str) -> None:
    net = Net({"x": (300, k)})
    optimized = assert_same(net.model(_product(net, "x", k, n)), 2e-2, precision, arch=90)
    (fused,) = [op for op in ops(optimized) if op.startswith("Fused")]
    assert fused.endswith("_pad3")
    assert "Pad" not in ops(optimized)


@pytest.mark.parametrize(("n", "arch", "readers"), [(512, 90, 1), (256, 80, 1), (256, 90, 2)])
def test_long_rows_are_padded_where_no_kernel_does_or_several_gain(
    n: int, arch: int, readers: int
) -> None:
    net = Net({"x": (300, 429)})
    optimized = assert_same(
        net.model(*(_product(net, "x", 429, n) for _ in range(readers))), 2e-3, "fp16", arch=arch
    )
    assert sum("pad" in op.lower() for op in ops(optimized)) == 1
    assert not any(op.startswith("Fused") and "_pad" in op for op in ops(optimized))
