"""Channels that kernels read where they lie, as TMA and accesses of 16 bytes need them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import Net, assert_same, ops


@pytest.mark.parametrize(("channels", "read"), [(16, True), (12, False), (20, False)])
def test_pixels_are_whole_accesses_apart(channels: int, read: bool) -> None:
    """The first eight channels begin and end where an access does; in the next pixel they do so
    only where all channels are some."""
    net = Net({"x": (2, 64, 10, 10)})
    bounds = (net.const([bound], np.int64) for bound in (0, 8, 1))
    part = net.node("Slice", net.conv("x", 64, channels, 3), *bounds)
    found = ops(assert_same(net.model(net.conv(part, 8, 16, 3)), 0.02, "fp16", 90))
    assert any(op.endswith("_sliced") for op in found) is read
    assert ("Slice" in found) is not read
