from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import TensorProto

from onnxbolt import domains
from onnxbolt.canonicalize.activations import restore, run
from onnxbolt.epilogues import EPILOGUES
from onnxbolt.graph.exporter import export_model
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from tests.canonicalize.compare import LIMITS, applied, model, operators, outputs_of, unchanged

Form = list[tuple[Any, ...]]  # nodes as compare.model takes them
SHAPE = ("n", 7)
SCALARS = {
    "sqrt2": 2**0.5,
    "rsqrt2": 0.5**0.5,
    "zero": 0.0,
    "sixth": 1 / 6,
    "half": 0.5,
    "one": 1.0,
    "two": 2.0,
    "three": 3.0,
    "six": 6.0,
    "minus3": -3.0,
    "cubic": 0.044715,
    "quick": 1.702,
    "k": (2 / np.pi) ** 0.5,
    "wrong": 0.51,
    "integer3": 3,
}
CONSTANTS = {name: np.array(value) for name, value in SCALARS.items()} | {"row": np.full(7, 0.5)}
ERF: Form = [("Div", "h sqrt2", "a"), ("Erf", "a", "b"), ("Add", "b one", "c")]
CUBE = ("Pow", "h integer3", "a")
TANH: Form = [
    CUBE,
    ("Mul", "a cubic", "b"),
    ("Add", "h b", "c"),
    ("Mul", "c k", "d"),
    ("Tanh", "d", "e"),
    ("Add", "e one", "f"),
]
FORMS: dict[str, tuple[str, Form]] = {
    "gelu of both exporters": ("GeluErf", [*ERF, ("Mul", "h c", "d"), ("Mul", "d half", "g")]),
    "gelu, half first": ("GeluErf", [*ERF, ("Mul", "half h", "d"), ("Mul", "c d", "g")]),
    "gelu, half by the bracket": ("GeluErf", [*ERF, ("Mul", "c half", "d"), ("Mul", "h d", "g")]),
    "gelu, halved by division": ("GeluErf", [*ERF, ("Mul", "h c", "d"), ("Div", "d two", "g")]),
    "gelu, product inside": (
        "GeluErf",
        [
            ("Mul", "rsqrt2 h", "a"),
            ("Erf", "a", "b"),
            ("Add", "one b", "c"),
            ("Mul", "h c", "d"),
            ("Mul", "half d", "g"),
        ],
    ),
    "gelu tanh of torchscript": ("GeluTanh", [*TANH, ("Mul", "half h", "m"), ("Mul", "m f", "g")]),
    "gelu tanh of dynamo": (
        "GeluTanh",
        [
            ("Mul", "h h", "s"),
            ("Mul", "s h", "a"),
            *TANH[1:],
            ("Mul", "h half", "m"),
            ("Mul", "m f", "g"),
        ],
    ),
    "gelu tanh, cube the other way": (
        "GeluTanh",
        [
            ("Mul", "h h", "s"),
            ("Mul", "h s", "a"),
            *TANH[1:],
            ("Mul", "h f", "m"),
            ("Mul", "m half", "g"),
        ],
    ),
    "gelu tanh, x outside": (
        "GeluTanh",
        [
            ("Mul", "h h", "s"),
            ("Mul", "s cubic", "a"),
            ("Add", "one a", "b"),
            ("Mul", "h k", "c"),
            ("Mul", "c b", "d"),
            ("Tanh", "d", "e"),
            ("Add", "e one", "f"),
            ("Mul", "h f", "m"),
            ("Mul", "m half", "g"),
        ],
    ),
    "silu": ("Silu", [("Sigmoid", "h", "a"), ("Mul", "h a", "g")]),
    "silu, other order": ("Silu", [("Sigmoid", "h", "a"), ("Mul", "a h", "g")]),
    "quick gelu": (
        "QuickGelu",
        [("Mul", "h quick", "a"), ("Sigmoid", "a", "b"), ("Mul", "h b", "g")],
    ),
    "quick gelu, other order": (
        "QuickGelu",
        [("Mul", "quick h", "a"), ("Sigmoid", "a", "b"), ("Mul", "b h", "g")],
    ),
    "hard swish by hard sigmoid": (
        "HardSwish",
        [("HardSigmoid", "h", "a", {"alpha": 1 / 6, "beta": 0.5}), ("Mul", "h a", "g")],
    ),
    "hard swish by clip": (
        "HardSwish",
        [
            ("Add", "h three", "a"),
            ("Clip", "a zero six", "b"),
            ("Mul", "h b", "c"),
            ("Div", "c six", "g"),
        ],
    ),
    "hard swish, gate divided": (
        "HardSwish",
        [
            ("Add", "three h", "a"),
            ("Clip", "a zero six", "b"),
            ("Div", "b six", "c"),
            ("Mul", "c h", "g"),
        ],
    ),
    "hard swish, gate multiplied": (
        "HardSwish",
        [
            ("Sub", "h minus3", "a"),
            ("Clip", "a zero six", "b"),
            ("Mul", "b sixth", "c"),
            ("Mul", "c h", "g"),
        ],
    ),
    "softplus": ("Softplus", [("Exp", "h", "a"), ("Add", "a one", "b"), ("Log", "b", "g")]),
    "mish": ("Mish", [("Softplus", "h", "a"), ("Tanh", "a", "b"), ("Mul", "h b", "g")]),
}
STANDARD = [
    ("Gelu", {}, "GeluErf", 20),
    ("Gelu", {"approximate": "tanh"}, "GeluTanh", 20),
    ("HardSwish", {}, "HardSwish", 14),
    ("Mish", {}, "Mish", 18),
    ("Swish", {}, "Silu", 24),
    ("Swish", {"alpha": 1.702}, "QuickGelu", 24),
]
CONTRIB = [
    ("Gelu", {}, "GeluErf"),
    ("FastGelu", {}, "GeluTanh"),
    ("QuickGelu", {}, "QuickGelu"),
    ("QuickGelu", {"alpha": 1.702}, "QuickGelu"),
    ("QuickGelu", {"alpha": 1.0}, "Silu"),
]


def wrapped(
    form: Form,
    dtype: int = TensorProto.FLOAT,
    opset: int = 17,
    extra: Sequence[tuple[Any, ...]] = (),
    outputs: str = "y",
) -> onnx.ModelProto:
    nodes = [("Identity", "x", "h"), *form, ("Identity", "g", "y"), *extra]
    return model(
        nodes, {"x": SHAPE}, dict.fromkeys(outputs.split(), SHAPE), CONSTANTS, opset, dtype
    )


def recognized(source: onnx.ModelProto) -> gs.Graph:
    graph = import_model(source)
    infer(graph)
    run(graph)
    return graph


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16])
@pytest.mark.parametrize("name", FORMS)
def test_written_out_forms(name: str, dtype: int) -> None:
    op, form = FORMS[name]
    source = wrapped(form, dtype)
    graph = recognized(source)
    assert operators(graph) == ["Identity", f"onnxbolt.internal.{op}", "Identity"]
    node = graph.nodes[1]
    assert [t.name for t in node.inputs] == ["h"]
    assert [proto.op_type for proto in node.expansion] == [op for op, *_ in form]
    assert node.provenance == tuple(f"node_{written}" for _, _, written, *_ in form)
    restore(graph)
    assert list(export_model(graph).graph.node) == list(source.graph.node)


@pytest.mark.parametrize("name", FORMS)
def test_the_step_computes_what_the_form_does(name: str) -> None:
    op, form = FORMS[name]
    x, y = outputs_of(wrapped(form), ["h", "g"])
    expected = EPILOGUES[op].reference(x.astype(np.float64), None)
    assert np.linalg.norm(y - expected) <= LIMITS[TensorProto.FLOAT] * np.linalg.norm(expected)


@pytest.mark.parametrize(("op", "attributes", "step", "opset"), STANDARD)
def test_standard_operators(op: str, attributes: dict[str, Any], step: str, opset: int) -> None:
    source = wrapped([(op, "h", "g", attributes)], opset=opset)
    graph = recognized(source)
    assert operators(graph)[1] == f"onnxbolt.internal.{step}"
    restore(graph)
    assert list(export_model(graph).graph.node) == list(source.graph.node)


@pytest.mark.parametrize(("op", "attributes", "step"), CONTRIB)
def test_operators_of_onnx_runtime(op: str, attributes: dict[str, Any], step: str) -> None:
    source = wrapped([(op, "h", "g", {**attributes, "domain": domains.CONTRIB})])
    graph = recognized(source)
    assert operators(graph)[1] == f"onnxbolt.internal.{step}"
    restore(graph)
    assert list(export_model(graph).graph.node) == list(source.graph.node)
    graph = recognized(source)
    for tensor in (graph.nodes[1].inputs[0], graph.nodes[1].outputs[0]):
        tensor.dtype = np.dtype(np.float16)
    restore(graph)  # written out, since they have no kernel in 16 bits on the CPU
    assert not any(node.domain for node in graph.nodes)
    assert len(graph.nodes) > 3


def test_operators_of_onnx_runtime_with_other_attributes() -> None:
    form: Form = [("QuickGelu", "h", "g", {"alpha": 2.0, "domain": domains.CONTRIB})]
    unchanged(wrapped(form), run)
    unchanged(wrapped([("Gelu", "h", "g", {"domain": "com.example"})]), run)


def test_mish_of_a_written_out_softplus() -> None:
    form: Form = [
        *FORMS["softplus"][1][:2],
        ("Log", "b", "s"),
        ("Tanh", "s", "t"),
        ("Mul", "h t", "g"),
    ]
    source = wrapped(form)
    graph = recognized(source)
    assert operators(graph) == ["Identity", "onnxbolt.internal.Mish", "Identity"]
    restore(graph)
    assert list(export_model(graph).graph.node) == list(source.graph.node)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("as_output", [True, False])
def test_inner_tensors_that_are_needed_elsewhere(name: str, as_output: bool) -> None:
    form = FORMS[name][1]
    for _, _, inner, *_ in form[:-1]:
        source = (
            wrapped(form, outputs=f"y {inner}")
            if as_output
            else wrapped(form, extra=[("Neg", inner, "z")], outputs="y z")
        )
        whole = FORMS[name][0]
        assert f"onnxbolt.internal.{whole}" not in operators(recognized(source)), inner


def replaced(name: str, old: str, new: str) -> Form:
    return [
        (op, " ".join(new if n == old else n for n in read.split()), *rest)
        for op, read, *rest in FORMS[name][1]
    ]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("gelu of both exporters", "half", "wrong"),
        ("gelu of both exporters", "sqrt2", "two"),
        ("gelu of both exporters", "one", "half"),
        ("gelu of both exporters", "half", "row"),
        ("gelu, product inside", "rsqrt2", "half"),
        ("gelu tanh of torchscript", "cubic", "wrong"),
        ("gelu tanh of torchscript", "k", "one"),
        ("gelu tanh of torchscript", "integer3", "two"),
        ("gelu tanh, x outside", "cubic", "half"),
        ("hard swish by clip", "three", "two"),
        ("hard swish by clip", "zero", "minus3"),
        ("hard swish by clip", "six", "three"),
        ("softplus", "one", "two"),
        ("quick gelu", "quick", "two"),
    ],
)
def test_other_constants(name: str, old: str, new: str) -> None:
    unchanged(wrapped(replaced(name, old, new)), run)


@pytest.mark.parametrize(
    "form",
    [
        [("Neg", "h", "n"), ("Sigmoid", "n", "a"), ("Mul", "h a", "g")],
        [("Sigmoid", "h", "a"), ("Mul", "h a", "b"), ("Add", "b a", "g")],
        [("HardSigmoid", "h", "a"), ("Mul", "h a", "g")],
        [("Neg", "h", "n"), *ERF, ("Mul", "n c", "d"), ("Mul", "d half", "g")],
        [("Softplus", "h", "a"), ("Sigmoid", "a", "b"), ("Mul", "h b", "g")],
        [("Softplus", "h", "g")],
    ],
)
def test_other_formulas(form: Form) -> None:
    unchanged(wrapped(form), run)


def test_constants_that_widen_the_result() -> None:
    form = FORMS["silu"][1]
    wide = model(
        [("Mul", "x one", "h"), *form], {"x": (2, 3)}, {"g": (2, 3)}, {"one": np.ones((1, 1))}
    )
    assert "onnxbolt.internal.Silu" in operators(recognized(wide))
    rank3 = model(
        [*FORMS["gelu of both exporters"][1]],
        {"h": (2, 3)},
        {"g": (1, 2, 3)},
        CONSTANTS | {"half": np.full((1, 1, 1), 0.5)},
    )
    unchanged(rank3, run)


def test_types_without_kernels_stay() -> None:
    unchanged(wrapped(FORMS["silu"][1], TensorProto.DOUBLE), run)


def test_a_scaled_activation_keeps_its_scale() -> None:
    source = wrapped([("Sigmoid", "h", "a"), ("Mul", "h a", "b"), ("Mul", "b three", "g")])
    graph = applied(source, run, 1)
    assert [node.op for node in graph.nodes] == ["Identity", "Sigmoid", "Mul", "Mul", "Identity"]


def test_restored_under_new_names() -> None:
    graph = recognized(wrapped(FORMS["gelu of both exporters"][1]))
    graph.nodes[1].inputs[0] = graph.inputs[0]
    graph.nodes[1].outputs[0].name = "renamed"
    restore(graph)
    exported = export_model(graph)
    onnx.checker.check_model(exported, full_check=True)
    assert exported.graph.node[1].input[0] == "x"
    assert exported.graph.node[-1].input[0] == "renamed"


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_restored_in_another_type(name: str, dtype: type) -> None:
    op, form = FORMS[name]
    graph = recognized(wrapped(form))
    for tensor in graph.tensors().values():
        if isinstance(tensor, gs.Variable):
            tensor.dtype = np.dtype(dtype)
    assert restore(graph) == 1
    exported = export_model(graph)
    onnx.checker.check_model(exported, full_check=True)
    assert exported.graph.node[-2].output[0] == "g"
    if dtype is np.float16:
        x, y = outputs_of(exported, ["h", "g"])
        expected = EPILOGUES[op].reference(x.astype(np.float64), None)
        assert np.linalg.norm(y - expected) <= LIMITS[TensorProto.FLOAT16] * np.linalg.norm(
            expected
        )


def test_a_standard_operator_is_restored_as_it_was_in_another_type() -> None:
    graph = recognized(wrapped([("Gelu", "h", "g")], opset=20))
    for tensor in graph.tensors().values():
        if isinstance(tensor, gs.Variable):
            tensor.dtype = np.dtype(np.float16)
    restore(graph)
    assert operators(graph) == ["Identity", "Gelu", "Identity"]
