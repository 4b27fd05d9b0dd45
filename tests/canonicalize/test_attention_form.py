"""ONNX Runtime's operators of attention are divided, and answer as ONNX Runtime does."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import onnxbolt
from onnxbolt.canonicalize import attention_form
from onnxbolt.canonicalize.restore import restore
from onnxbolt.domains import CONTRIB, INTERNAL
from onnxbolt.graph.exporter import export_model
from tests.ops.attention_contrib import BIASES, DOMAIN, MASKS, Call
from tests.ops.attention_form import answers
from tests.support import Net, matched, prepare

LOWEST = float(np.finfo(np.float32).min)


def optimized(call: Call, out: Path, precision: str = "keep") -> list[str]:
    """The names of fused attentions; all that is checked passes."""
    report = onnxbolt.optimize(
        call.model(), out, archs="sm_80", precision=precision, fuse="all", library=False
    )
    assert report.passed
    return [node.op for node in report.fused if "Attention" in node.op]


def drawn(seed: int) -> Call:
    """A random call of a form that is divided, often with equal sizes."""
    rng = np.random.default_rng(seed)

    def pick(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    op = pick("Attention", "MultiHeadAttention", "GroupQueryAttention")
    heads, causal = pick(2, 4), bool(pick(0, 1))
    call = Call(op, pick(1, 2, 4), heads, pick(1, 2), pick(2, 4, 5), pick(2, 4, 7))
    call = dataclasses.replace(
        call, packed=bool(pick(0, 1)), symbolic=bool(pick(0, 1)), vector=bool(pick(0, 1))
    )
    if op == "GroupQueryAttention":
        return call
    attrs = {"unidirectional": 1} if causal else {"mask_filter_value": pick(-5.0, LOWEST)}
    if pick(0, 1):
        attrs["scale"] = pick(0.2, 1.0)
    multiple = op == "MultiHeadAttention" or call.symbolic
    by_heads = op == "MultiHeadAttention" and bool(pick(0, 1))
    return dataclasses.replace(
        call,
        mask=pick(*(mask for mask in MASKS if mask != "bounds" or not multiple)),
        bias=pick(*BIASES),
        by_heads=by_heads,
        value_size=8 if by_heads else pick(8, 16),
        attrs=attrs,
    )


@pytest.mark.parametrize("seed", range(32))
def test_it_answers_as_onnx_runtime_does(seed: int, tmp_path: Path) -> None:
    call = drawn(seed)
    assert len(optimized(call, tmp_path / "out.onnx")) == 1
    for draw in range(3):
        given = call.feeds(draw)
        got = answers(onnx.load(tmp_path / "out.onnx"), given)
        np.testing.assert_allclose(got, answers(call.model(), given), atol=2e-5)


@pytest.mark.parametrize(
    ("call", "op"),
    [
        (Call(), "FusedAttention_qkv_packed_f32"),
        (Call(mask="keys"), "FusedAttention_qkv_packed_added_f32_nan_f32"),
        (
            Call(mask="keys", attrs={"mask_filter_value": LOWEST}),
            "FusedAttention_qkv_packed_kept_f32",
        ),
        (Call(attrs={"unidirectional": 1}), "FusedAttention_qkv_packed_nan_banded_f32"),
        (Call("MultiHeadAttention"), "FusedAttention_kv_packed_f32"),
        (Call("MultiHeadAttention", by_heads=True), "FusedAttention_kv_packed_f32"),
        (
            Call("GroupQueryAttention", packed=True),
            "FusedAttention_qkv_packed_kept_zero_grouped_banded_f32",
        ),
    ],
)
def test_masks_and_projections_are_recognized(call: Call, op: str, tmp_path: Path) -> None:
    assert optimized(call, tmp_path / "out.onnx") == [op]
    left = {node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node}
    assert not left & {"Split", "MatMul", "Transpose", "MultiHeadAttention"}


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("op", ["Attention", "MultiHeadAttention", "GroupQueryAttention"])
def test_it_is_converted(op: str, precision: str, tmp_path: Path) -> None:
    mask = "" if op == "GroupQueryAttention" else "keys"
    (name,) = optimized(Call(op, mask=mask), tmp_path / "out.onnx", precision)
    assert name.endswith({"fp16": "_f16", "bf16": "_bf16"}[precision])


def divided(model: onnx.ModelProto, precision: str = "keep") -> onnx.ModelProto:
    """The model as it is if no kernel takes its attention."""
    graph = prepare(model, precision)
    assert [node.op for node in graph.nodes if node.domain == INTERNAL] == [attention_form.OP]
    restore(graph)
    return export_model(graph)


@pytest.mark.parametrize("precision", ["keep", "fp16"])
@pytest.mark.parametrize(
    "call",
    [
        Call(mask="keys", bias="heads"),
        Call(mask="bounds", symbolic=False, attrs={"unidirectional": 1}),
        Call(mask="scores", vector=False, attrs={"scale": 0.2}),
        Call("MultiHeadAttention", mask="ends", bias="batch"),
        Call("MultiHeadAttention", by_heads=True, mask="keys"),
        Call("GroupQueryAttention"),
        Call("GroupQueryAttention", packed=True),
    ],
)
def test_what_no_kernel_takes_is_an_operator_again(call: Call, precision: str) -> None:
    back = divided(call.model(), precision)
    ops = [node.op_type for node in back.graph.node if node.domain == CONTRIB]
    assert ops == ["GroupQueryAttention" if call.op[0] == "G" else "MultiHeadAttention"]
    given, limit = call.feeds(), 2e-5 if precision == "keep" else 5e-2
    np.testing.assert_allclose(answers(back, given), answers(call.model(), given), atol=limit)


@pytest.mark.parametrize("count", [2, 3])
def test_packed_operands_are_divided(count: int, tmp_path: Path) -> None:
    """ONNX Runtime has no CPU kernel for them, so another model gives the answers."""
    batch, positions, heads, size = 2, 5, 4, 8
    shape = (batch, positions, heads, count, size)

    def model(packed: bool) -> onnx.ModelProto:
        net = Net({"x": (batch, positions, heads * size), "packed": shape})
        parts = [net.node("Gather", "packed", net.const(i, np.int64), axis=3) for i in range(count)]
        rows = [net.node("Reshape", p, net.const([0, 0, -1], np.int64)) for p in parts]
        inputs = ["packed"] if packed else rows
        if count == 2:
            inputs = ["x", *inputs]
        y = net.node("MultiHeadAttention", *inputs, num_heads=heads, domain=DOMAIN)
        return net.model(net.node("MatMul", y, net.normal(heads * size, 16)))

    onnxbolt.optimize(
        model(packed=True),
        tmp_path / "out.onnx",
        archs="sm_80",
        precision="keep",
        fuse="all",
        library=False,
        verify=False,
    )
    made = onnx.load(tmp_path / "out.onnx")
    assert any(node.op_type.startswith("FusedAttention") for node in made.graph.node)
    rng = np.random.default_rng(0)
    given = {"x": rng.standard_normal((batch, positions, heads * size)).astype(np.float32)}
    given["packed"] = rng.standard_normal(shape).astype(np.float32)
    read = {name: given[name] for name in [value.name for value in made.graph.input]}
    np.testing.assert_allclose(answers(made, read), answers(model(False), given), atol=1e-5)


# --- near misses ----------------------------------------------------------------------------------


def called(op: str, inputs: Mapping[int, str], **attrs: Any) -> onnx.ModelProto:
    """A call of rows [2, 4, 32] with further inputs."""
    shapes: dict[str, Sequence[int | str]] = {
        "x": (2, 4, 32),
        "past": (2, 2, 4, 4, 8),
        "part": (2, 4, 4, 8),
        "wide": (32, 96),
    }
    shapes |= {"vector": (96,), "mask": (2, 1, 4, 4), "context": (2, 6, 32), "lengths": (2,)}
    types: dict[str, int] = {"mask": TensorProto.INT32, "lengths": TensorProto.INT32}
    net = Net(shapes, types=types)
    weight = net.normal(32, 96)
    given = {"weight": weight, **{name: name for name in shapes}}
    names = [given.get(inputs.get(i, ""), "") for i in range(max(inputs) + 1)]
    return net.model(net.node(op, *names, num_heads=4, domain=DOMAIN, **attrs))


PACKED = {0: "x", 1: "weight"}
ROWS = {0: "x", 1: "x", 2: "x"}
GROUPED = {**ROWS, 5: "lengths", 6: "lengths"}
GROUPS = {"kv_num_heads": 2}


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "reason"),
    [
        ("Attention", {0: "x", 1: "wide"}, {}, "its weights are computed"),
        ("Attention", {**PACKED, 4: "past"}, {}, "it has past keys"),
        ("Attention", PACKED, {"do_rotary": 1}, "it rotates its queries and keys"),
        (
            "Attention",
            {**PACKED, 3: "mask"},
            {},
            "its mask is none of [B], [2B], [B, T], [B, S, T]",
        ),
        (
            "Attention",
            {**PACKED, 3: "lengths"},
            {"unidirectional": 1, "mask_filter_value": LOWEST},
            "its causal mask and the other one exclude keys by the same number",
        ),
        ("MultiHeadAttention", {**ROWS, 6: "part", 7: "part"}, {}, "it has past keys"),
        (
            "MultiHeadAttention",
            {**ROWS, 3: "vector"},
            {},
            "its bias is computed, or is for keys by heads",
        ),
        (
            "MultiHeadAttention",
            {0: "x", 1: "context", 2: "context"},
            {"unidirectional": 1},
            "its mask is causal, and it may have more or fewer keys than queries",
        ),
        (
            "MultiHeadAttention",
            {0: "x"},
            {},
            "the sizes of its queries, keys and values are not known",
        ),
        ("GroupQueryAttention", {**GROUPED, 3: "part", 4: "part"}, GROUPS, "it has past keys"),
        (
            "GroupQueryAttention",
            GROUPED,
            {**GROUPS, "do_rotary": 1},
            "it rotates its queries and keys",
        ),
        (
            "GroupQueryAttention",
            GROUPED,
            {**GROUPS, "softcap": 5.0},
            "its attribute softcap is not known",
        ),
        (
            "GroupQueryAttention",
            GROUPED,
            {**GROUPS, "local_window_size": 2},
            "its window is not the same for queries behind the last key",
        ),
        (
            "QAttention",
            {**PACKED, 2: "vector"},
            {},
            "QAttention of ONNX Runtime holds projections or past keys beside attention",
        ),
    ],
)
def test_what_stays_says_why(
    op: str, inputs: Mapping[int, str], attrs: Mapping[str, Any], reason: str
) -> None:
    candidates, refusals = matched(called(op, inputs, **attrs))
    assert not [each for each in candidates if each.anchor.op.name == "attention"]
    assert [refusal.reason for refusal in refusals if refusal.op == op] == [reason]
