"""Models of which no run can be captured in a CUDA graph."""

from __future__ import annotations

import onnx
import pytest

from onnxbolt.graph.capture import obstacle


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ("y = Neg(x)", ""),
        ("s = Shape(x) y = Reshape(x, s)", ""),
        ("y = NonZero(x)", "the data decide the size of the output of NonZero"),
        ("k = Cast <to = 7> (i) y, at = TopK(x, k)", "TopK reads k, which is computed"),
        ("y, at = TopK(x, i)", "TopK reads i, which is computed"),
        ("y = SequenceEmpty()", "SequenceEmpty runs on the CPU"),
        (
            "y = If(c) <then_branch = a () => (float[1] u) { u = Identity(x) },"
            " else_branch = b () => (float[1] v) { v = Neg(x) }>",
            "If decides at run time what runs",
        ),
    ],
)
def test_obstacles(nodes: str, reason: str) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>'
        f"g (float[8] x, int64[1] i, bool c) => (float[N] y) {{ {nodes} }}"
    )
    found = obstacle(model)
    assert found.startswith(reason) if reason else not found


def test_functions_of_one_name_in_two_domains_count() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17, "a" : 1, "b" : 1]>'
        "g (float[8] x) => (int64[1, N] y) { y = a.F(x) }"
        '<domain: "a", opset_import: ["" : 17]> F (u) => (v) { v = NonZero(u) }'
        '<domain: "b", opset_import: ["" : 17]> F (u) => (v) { v = Neg(u) }'
    )
    assert "NonZero" in obstacle(model)
