"""Padding that differs on all four sides, without a GPU: what nodes and kernels are told, and
the function bodies' answers."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from onnxbolt.ops.functions import DOMAIN
from tests.gpu.fault_models import prepare
from tests.gpu.padded import CASES, PADS
from tests.support import feeds_of, run


@pytest.mark.parametrize("case", CASES)
def test_nodes_keep_each_side_s_padding(case: str) -> None:
    family, original = CASES[case]
    prepared = prepare(family, original())
    nodes = [node for node in prepared.optimized.graph.node if node.domain == DOMAIN]
    pads = [
        list(helper.get_attribute_value(a))
        for node in nodes
        for a in node.attribute
        if a.name == "pads"
    ]
    assert PADS in pads
    feeds = feeds_of(prepared.original)
    for expected, got in zip(
        run(prepared.original, feeds), run(prepared.optimized, feeds), strict=True
    ):
        assert got.shape == expected.shape
        assert np.linalg.norm(got - expected) <= 5e-3 * np.linalg.norm(expected)
