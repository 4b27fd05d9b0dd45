"""The entries of epilogue steps: each is whole, is recognized by all that it names, and is the only
place that knows it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import onnxbolt
from onnxbolt.canonicalize.activations import run
from onnxbolt.domains import CONTRIB, INTERNAL
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import (
    EPILOGUES,
    EpilogueStep,
    registered,
    steps_of,
)
from onnxbolt.epilogues.formula import Formula, X, apply
from onnxbolt.epilogues.patterns import Conversion, Pattern, Unary, Vector
from onnxbolt.epilogues.step import Accuracy, Parameter, unary
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from onnxbolt.layout.rules import elementwise
from onnxbolt.match.matcher import match
from onnxbolt.precision import ops
from onnxbolt.verify.functions import functions
from tests.conftest import ROOT
from tests.epilogues.written import write
from tests.support import Net

ACTIVATIONS = tuple(entry for entry in registered() if entry.activation)
PATTERNS = [(entry, pattern) for entry in registered() for pattern in entry.patterns]
FORMS = [(entry, form) for entry in registered() for form in entry.forms]
# steps that matching and planning add by themselves (ops/gemm/, plan/global_average.py, ..)
ADDED = {"Gemm", "Store", "Mean", "Gate", "GateBias", "Rotate", "CastF16", "CastBF16"}
# those that ops of codes recognize (ops/quantized/)
ADDED |= {"Dequantize"} | {
    f"{step}{dtype.name}"
    for step in ("Decode", "AddCodes", "MulCodes", "Requantize", "Quantize")
    for dtype in DType
    if dtype.is_code
}
ADDED |= {
    f"{step}{dtype.name}" for step in ("Add", "Store") for dtype in DType if not dtype.is_code
}
# modules that name an activation, and why
NAMED = {
    "advice/activation.py": "activations that explain proposes, and for which ones",
    "advice/tie_rules.py": "operators that keep channels apart",
    "canonicalize/contrib_group_norm.py": "ONNX Runtime's own operator has a SiLU",
    "canonicalize/formulas.py": "a default of one of ONNX Runtime's own operators",
    "canonicalize/quantized/clips.py": "the operator by which a QAT narrows the range of codes",
    "canonicalize/quantized/operators.py": "quantized forms of operators",
    "graph/contrib.py": "shapes of ONNX Runtime's own operators",
    "graph/lift/rules.py": "operators as earlier opsets had them",
    "graph/symbols.py": "operators whose operands broadcast",
    "graph/values.py": "operators that compute sizes",
    "onnxruntime_time.py": "sequences of steps that are one kernel of cuDNN",
    "ops/attention/decomposed.py": "operators that may change scores",
    "precision/answers.py": "operators that round the answers of a detector, and that do not",
    "precision/decide.py": "bounds of a Clip that are known say that its result is within range",
    "quantize/balance.py": "factors of channels move across a Relu",
    "verify/functions.py": "operators of several tensors",
    "verify/limits.py": "the operator that kernels have an instruction for",
}


def _named(value: object) -> str:
    if isinstance(value, EpilogueStep):
        return value.name
    return value.op if isinstance(value, Pattern) else ""


def _node(net: Net, pattern: Pattern, x: str, y: str) -> str:
    """A node that the pattern is about; `y` is a tensor of x's shape."""
    if isinstance(pattern, Vector):
        return net.node(pattern.op, x, net.const(np.linspace(0.5, 2.0, 8)))
    if isinstance(pattern, Conversion):
        return net.node(pattern.op, x, to=pattern.to.onnx)
    if isinstance(pattern, Unary):
        scalars = [net.const(value) for value in (-1.0, 1.0)] if pattern.scalars else []
        bias = [net.const(np.linspace(0.5, 2.0, 8))] if pattern.bias else []
        domain: dict[str, Any] = {"domain": pattern.domain} if pattern.domain else {}
        return net.node(pattern.op, x, *scalars, *bias, **domain)
    return net.node(pattern.op, x, y)


@pytest.mark.parametrize(("entry", "pattern"), PATTERNS, ids=_named)
def test_each_pattern_is_matched(entry: EpilogueStep, pattern: Pattern) -> None:
    net = Net({"x": (4, 8), "y": (4, 8)})
    product = net.node("MatMul", "x", net.normal(8, 8))
    model = net.model(_node(net, pattern, product, "y"))
    if pattern.domain:
        model.opset_import.append(helper.make_opsetid(pattern.domain, 1))
    if isinstance(pattern, Conversion):
        for value in (*model.graph.input, *model.graph.initializer):
            _to_half(value)
    graph = import_model(model)  # as it stands: canonicalization folds a scale into the weight
    infer(graph)
    ((candidate,), _) = match(graph)
    biased = isinstance(pattern, Unary) and pattern.bias
    assert candidate.steps == (*(["Bias"] if biased else []), entry.name)


def _to_half(value: onnx.ValueInfoProto | onnx.TensorProto) -> None:
    if isinstance(value, onnx.TensorProto):
        half = onnx.numpy_helper.to_array(value).astype(np.float16)
        value.CopyFrom(onnx.numpy_helper.from_array(half, value.name))
    else:
        value.type.tensor_type.elem_type = DType.F16.onnx


def test_each_step_is_recognized_by_something() -> None:
    assert {e.name for e in registered() if not (e.patterns or e.forms)} == ADDED


def _opset(form: Formula) -> int:
    standard = {"Gelu": 20, "HardSwish": 14, "Mish": 18, "Swish": 24}
    return standard.get(getattr(form, "op", ""), 17)


@pytest.mark.parametrize(("entry", "form"), FORMS, ids=_named)
def test_each_formula_is_recognized(entry: EpilogueStep, form: Formula) -> None:
    net = Net({"x": (4, 8)}, opset=_opset(form))
    graph = import_model(net.model(write(net, form, net.node("Neg", "x"))))
    infer(graph)
    assert run(graph) == 1
    assert [(node.op, node.domain or "") for node in graph.nodes] == [
        ("Neg", ""),
        (entry.name, INTERNAL),
    ]


@pytest.mark.parametrize("entry", ACTIVATIONS, ids=_named)
def test_each_activation_is_whole(entry: EpilogueStep) -> None:
    header = (ROOT / "custom_ops" / "epilogue" / "steps.h").read_text()
    assert f"struct {entry.functor} :" in header
    assert f"X({entry.name}, " in (ROOT / "custom_ops" / "profiler" / "steps.h").read_text()
    assert all(onnx.defs.has(op) for op in entry.body_operators)
    assert entry.cost > 0
    assert 0 <= entry.accuracy.own < 1e-5
    assert entry.accuracy.exact or entry.accuracy.own or entry.name == "LeakyRelu"


@pytest.mark.parametrize("entry", ACTIVATIONS, ids=_named)
def test_no_activation_is_steeper_than_its_slope(entry: EpilogueStep) -> None:
    x = np.linspace(-12, 12, 240_001)
    params = tuple(param.typical for param in entry.params)
    y = entry.reference(x, None, *params)
    steepest = float(np.abs(np.diff(y) / np.diff(x)).max())
    slope = entry.accuracy.steepest(params)
    assert steepest <= slope + 1e-6
    assert slope <= 1.25 * steepest + 1e-6


@pytest.mark.parametrize("entry", registered(), ids=_named)
def test_lists_of_other_stages_derive_from_the_entries(entry: EpilogueStep) -> None:
    for op in entry.operators:
        assert entry in steps_of(op)
        assert ops.is_safe(op)
        assert ops.is_composed(op) == (entry.in_ort.kernels > 1)
        assert ops.needs_epilogue(op) == (not entry.in_ort.all_types)
        assert ops.is_bounding(op) == entry.bounding
        assert elementwise.takes(op)
    assert entry.functions <= functions().keys()
    assert not entry.forms or elementwise.takes(entry.name)


def test_activations_are_named_in_no_other_module() -> None:
    names = {entry.name for entry in ACTIVATIONS} | {"PRelu"}
    assert {path for path, constant in _constants() if constant in names} == NAMED.keys()


def _constants() -> Iterator[tuple[str, object]]:
    """The constants of all modules of the package outside epilogues/."""
    package = ROOT / onnxbolt.__name__
    for path in package.rglob("*.py"):
        name = path.relative_to(package)
        if name.parts[0] != "epilogues":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant):
                    yield name.as_posix(), node.value


def _step(name: str = "Hard", **facts: object) -> EpilogueStep:
    given: dict[str, object] = {
        "body": unary("Relu"),
        "reference": np.maximum,
        "cost": 1,
        "functor": "ext::Hard",
        **facts,
    }
    return EpilogueStep(name, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"name": "Relu"}, "has the name Relu of onnxbolt's own"),
        ({"patterns": (Unary("Sigmoid"),)}, "nodes Sigmoid would be Sigmoid"),
        ({"patterns": (Unary("BiasGelu", CONTRIB),)}, "nodes BiasGelu would be GeluErf"),
        ({"forms": (X * apply("Sigmoid", X),)}, "a formula would be Silu"),
        ({"operand": "weight"}, "built into the kernels"),
        ({"cast": DType.F16}, "built into the kernels"),
    ],
)
def test_collisions_are_refused(facts: dict[str, object], reason: str) -> None:
    before = registered()
    with pytest.raises(ValueError, match=reason):
        EPILOGUES.add(_step(**facts), "other")  # type: ignore[arg-type]
    assert registered() == before


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"name": "to_nchw"}, "letters and digits"),
        ({"functor": "Hard>, std::x<"}, "no C\\+\\+ type's name"),
        ({"header": "../secret.h"}, "no header"),
        ({"header": "hard.h", "functor": ""}, "no header"),
        ({"operand": "matrix"}, "no kind of operand"),
        ({"forms": (apply("Shrink", X),), "operand": "vector"}, "neither operands nor"),
        ({"forms": (X + 1,)}, "a product or an operator's result"),
        ({"accuracy": Accuracy(slope=abs, fp16=1e-4)}, "is a number"),
    ],
)
def test_entries_that_contradict_themselves_are_refused(
    facts: dict[str, object], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        _step(**facts)  # type: ignore[arg-type]


def test_extensions_come_and_go() -> None:
    step = _step(params=(Parameter("lambd", 0.5, 0.5),), patterns=(Unary("Shrink"),))
    EPILOGUES.add(step, "other")
    try:
        assert EPILOGUES["Hard"] is step
        assert steps_of("Shrink") == (step,)
        assert ops.is_safe("Shrink")
        assert "Shrink" in functions()
    finally:
        EPILOGUES.remove(step)
    assert "Hard" not in EPILOGUES
    assert not steps_of("Shrink")
    assert not ops.is_safe("Shrink")
    assert "Shrink" not in functions()


def test_the_packages_own_steps_stay() -> None:
    with pytest.raises(ValueError, match="none of an extension's"):
        EPILOGUES.remove(EPILOGUES["Relu"])
