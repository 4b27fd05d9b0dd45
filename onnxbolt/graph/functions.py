"""Function bodies: each fused op type is also a model-local function of standard ONNX ops.

They are what a session without the custom-op library runs (ONNX, FunctionProto). A body is
interpreted at the model's own opset, and ONNX Runtime accepts one body per op type, so whatever
changes a body changes the name.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import AttributeProto, FunctionProto, NodeProto, helper, numpy_helper

from onnxbolt import domains
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import BIAS, PRODUCT, STORE, Step
from onnxbolt.sampling import Sampling

DOMAIN = domains.FUSED
TO_CHANNELS_FIRST = {3: (0, 2, 1), 4: (0, 3, 1, 2)}
TO_CHANNELS_LAST = {3: (0, 2, 1), 4: (0, 2, 3, 1)}
_REFERENCED = {
    "conv": ("strides", "pads", "dilations", "group"),
    "max_pool": ("kernel_shape", "strides", "pads", "dilations", "ceil_mode"),
    "average_pool": ("kernel_shape", "strides", "pads", "ceil_mode", "count_include_pad"),
    "global_average_pool": (),
}
_LAYOUTS = {"to_nhwc": "NchwToNhwc", "to_nchw": "NhwcToNchw"}
_POOLS = {
    "max_pool": "MaxPool",
    "average_pool": "AveragePool",
    "global_average_pool": "GlobalAveragePool",
}
_FUSED = {
    "conv": "FusedConv",
    "gemm": "FusedGemm",
    "elementwise": "FusedElementwise",
    "squeeze_excite": "SqueezeExcite",
}
_SCALAR_ATTRIBUTES = {
    "group": AttributeProto.INT,
    "ceil_mode": AttributeProto.INT,
    "count_include_pad": AttributeProto.INT,
    "cubic_coeff_a": AttributeProto.FLOAT,
    "exclude_outside": AttributeProto.INT,
}
_CUBIC = ("cubic_coeff_a", "exclude_outside")


class Part(enum.Enum):
    """What of its output a node writes: all of it, or some channels, which lie as the attribute
    `around` says."""

    WHOLE = ""
    FIRST = "part"  # before all others: the other channels are not defined, zeros in the body
    NEXT = (  # the last input with these channels written, which are zeros in it or not defined
        "into"
    )


@dataclass(frozen=True)
class Signature:
    """All that a body depends on. `kind` is "conv", "gemm", "elementwise", "squeeze_excite",
    "resize", a pooling or a change of layout; `rank` is that of x (0: any, for gemm and
    elementwise).

    `padding`: channels of zeros that a change of layout appends ("to_nhwc") or takes away
    ("to_nchw", likewise a convolution that writes both forms), or columns of zeros that a GEMM's
    weight has beyond those of x. `planes`: where a convolution reads x as NCHW, the type of x.
    `to_nchw`: whether it writes y so. `sampling`: how "resize" does it. `part`: what it writes of
    its output. `sliced`: x are some of its input's channels, those of the attribute `channels`.
    """

    kind: str
    dtype: DType
    rank: int = 0
    steps: tuple[Step, ...] = ()
    padding: int = 0
    planes: DType | None = None
    sampling: Sampling | None = None
    part: Part = Part.WHOLE
    sliced: bool = False
    to_nchw: bool = False

    @property
    def into(self) -> bool:
        """Whether the last input is what earlier nodes wrote of the output."""
        return self.part is Part.NEXT


class _Body:
    """Nodes of a function in the making; the callable is what epilogues/step.py names `Emit`.

    bfloat16 is computed in fp32, as the kernels do: neither ONNX (Conv, below opset 22) nor ONNX
    Runtime has it for most ops.
    """

    def __init__(self, stored: DType) -> None:
        self.stored, self.dtype = stored, DType.F32 if stored is DType.BF16 else stored
        self.nodes: list[NodeProto] = []
        self.outputs = ["y"]

    def __call__(
        self, op: str, inputs: Sequence[str] | float, output: str = "", **attributes: object
    ) -> str:
        name = output or f"t{len(self.nodes)}"
        if op == "Const":
            value = numpy_helper.from_array(
                np.array(inputs, np.float32).astype(self.dtype.numpy), name
            )
            self.nodes.append(helper.make_node("Constant", [], [name], value=value))
        else:
            self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))  # type: ignore[arg-type]
        return name

    def ints(self, *values: int) -> str:
        """A constant vector of int64."""
        name = f"t{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(
                "Constant",
                [],
                [name],
                value=numpy_helper.from_array(np.array(values, np.int64), name),
            )
        )
        return name

    def convert(self, name: str, have: DType, want: DType) -> str:
        """`name` in another element type, by a Cast where these differ."""
        return name if have is want else self("Cast", [name], to=want.onnx)

    def load(self, name: str) -> str:
        """An input in the type that the body computes in."""
        return self.convert(name, self.stored, self.dtype)

    def store(self, name: str) -> None:
        """Make `name` an output, too, as it is stored."""
        self.outputs.append("stored")
        if self.dtype is self.stored:
            self("Identity", [name], "stored")
        else:
            self("Cast", [name], "stored", to=self.stored.onnx)

    def refer(self, names: Sequence[str]) -> None:
        """Give the last node attributes that it takes from the calling node."""
        for name in names:
            kind = _SCALAR_ATTRIBUTES.get(name, AttributeProto.INTS)
            self.nodes[-1].attribute.append(
                AttributeProto(name=name, ref_attr_name=name, type=kind)
            )

    def given(self, name: str) -> str:
        """The calling node's attribute `scales`, `sizes`, `channels` or `around` as a vector."""
        result = self("Constant", [])
        field, kind = (
            ("value_floats", AttributeProto.FLOATS)
            if name == "scales"
            else ("value_ints", AttributeProto.INTS)
        )
        self.nodes[-1].attribute.append(AttributeProto(name=field, ref_attr_name=name, type=kind))
        return result


def build(signature: Signature, opset: int) -> FunctionProto:
    """The function of an op type, its name included."""
    body = _Body(signature.dtype)
    operands = [f"operand{i}" for i, step in enumerate(s for s in signature.steps if s.row.operand)]
    if signature.sliced:
        _slice(body)
    if signature.kind == "gemm":
        result = _gemm(body, signature, opset, operands)
    elif signature.kind == "conv":
        result = _conv(body, signature, opset, operands)
    elif signature.kind == "elementwise":
        result = _epilogue(
            body, signature, opset, body.load("x"), operands, lambda name, step: name
        )
    elif signature.kind == "squeeze_excite":
        operands = ["squeeze_bias", "excite", "excite_bias"]
        result = _squeeze_excite(body, signature, opset)
    elif signature.kind in _LAYOUTS:
        result = _layout(body, signature, opset)
    elif signature.sampling is not None:
        result = _resize(body, signature, signature.sampling, opset)
    else:
        result = _pool(body, signature, opset)
    if signature.part is not Part.WHOLE:
        result = _placed(body, signature, result)
    if not any(step.row.cast for step in signature.steps):
        body.convert(result, body.dtype, signature.dtype)
    body.nodes[-1].output[0] = "y"  # the result is always what the last node computes
    weighted = signature.kind in ("conv", "gemm", "squeeze_excite")
    inputs = [
        "whole" if signature.sliced else "x",
        *(["weight"] if weighted else []),
        *operands,
        *(["written"] if signature.into else []),
    ]
    referenced = (
        _referenced_by(signature.sampling)
        if signature.sampling
        else _REFERENCED.get(signature.kind, ())
    )
    referenced = (
        *referenced,
        *(["channels"] if signature.sliced else []),
        *(["around"] if signature.part.value else []),
    )
    return helper.make_function(
        DOMAIN,
        _name(signature, body.nodes),
        inputs,
        body.outputs,
        body.nodes,
        [helper.make_opsetid("", opset)],
        list(referenced),
    )


def _gemm(body: _Body, signature: Signature, opset: int, operands: list[str]) -> str:
    weight = body("Transpose", [body.load("weight")], perm=[1, 0])
    if signature.padding:
        weight = body("Slice", [weight, body.ints(0), body.ints(-signature.padding), body.ints(0)])
    result = body("MatMul", [body.load("x"), weight])
    return _epilogue(body, signature, opset, result, operands, lambda name, step: name)


def _conv(body: _Body, signature: Signature, opset: int, operands: list[str]) -> str:
    """In channels-first throughout: ONNX Runtime fuses the bias and ReLU there, and the
    Transposes of neighbouring bodies cancel."""
    first, last = TO_CHANNELS_FIRST[signature.rank], TO_CHANNELS_LAST[signature.rank]
    if signature.planes is None:
        x = body("Transpose", [body.load("x")], perm=first)
    else:  # rounded as the kernel does
        x = body.load(body.convert("x", signature.planes, signature.dtype))
    inputs = [x, body("Transpose", [body.load("weight")], perm=first)]
    steps, operands = list(signature.steps), list(operands)
    if steps and steps[0].name == BIAS:
        bias = operands.pop(0)
        inputs.append(body.convert(bias, DType.F32, body.dtype))
        steps.pop(0)
    result = body("Conv", inputs)
    body.refer(_REFERENCED["conv"])

    def shaped(name: str, step: Step) -> str:
        if step.row.operand in ("tensor", "weight"):
            return body("Transpose", [name], perm=first)
        return body("Reshape", [name, body.ints(-1, *[1] * (signature.rank - 2))])

    result = _epilogue(
        body,
        Signature("conv", signature.dtype, signature.rank, tuple(steps)),
        opset,
        result,
        operands,
        shaped,
    )
    if not signature.to_nchw:
        return body("Transpose", [result], perm=last)
    if signature.padding:
        return body("Slice", [result, body.ints(0), body.ints(-signature.padding), body.ints(1)])
    # y is not what is stored
    return body("Identity", [result]) if steps[-1:] == [Step(STORE)] else result


def _epilogue(
    body: _Body,
    signature: Signature,
    opset: int,
    result: str,
    operands: list[str],
    shaped: Callable[[str, Step], str],
) -> str:
    remaining = iter(operands)
    for step in signature.steps:
        operand = ""
        if step.row.operand:
            operand = next(remaining)
            operand = (
                body.convert(operand, DType.F32, body.dtype)
                if step.row.operand == "vector"
                else body.load(operand)
            )
            operand = shaped(operand, step)
        if step.name == STORE:
            body.store(
                body("Transpose", [result], perm=TO_CHANNELS_LAST[signature.rank])
                if signature.kind == "conv"
                else result
            )
        elif step.name == PRODUCT and signature.kind == "conv":  # 1x1, by a weight [K, 1, 1, C]
            result = body("Conv", [result, operand])
        else:
            result = step.row.body(body, opset, result, operand, step.params)
    return result


def _pool(body: _Body, signature: Signature, opset: int) -> str:
    result = body(
        _POOLS[signature.kind], [body("Transpose", [body.load("x")], perm=TO_CHANNELS_FIRST[4])]
    )
    body.refer(_REFERENCED[signature.kind])
    result = body("Transpose", [result], perm=TO_CHANNELS_LAST[4])
    return _epilogue(body, signature, opset, result, [], lambda name, step: name)


def _referenced_by(sampling: Sampling) -> tuple[str, ...]:
    return (sampling.by, *(_CUBIC if sampling.mode == "cubic" else ()))


def _resize(body: _Body, signature: Signature, sampling: Sampling, opset: int) -> str:
    """The node says what becomes of height and width; images and channels stay."""
    x = body("Transpose", [body.load("x")], perm=TO_CHANNELS_FIRST[4])
    if sampling.by == "scales":
        inputs = [
            x,
            "",
            body(
                "Concat",
                [body("Constant", [], value_floats=[1.0, 1.0]), body.given("scales")],
                axis=0,
            ),
        ]
    else:
        kept = body("Slice", [body("Shape", [x]), body.ints(0), body.ints(2)])
        inputs = [x, "", "", body("Concat", [kept, body.given("sizes")], axis=0)]
    result = body(
        "Resize",
        inputs,
        mode=sampling.mode,
        coordinate_transformation_mode=sampling.coordinates,
        nearest_mode=sampling.rounding,
    )
    body.refer(_referenced_by(sampling)[1:])
    result = body("Transpose", [result], perm=TO_CHANNELS_LAST[4])
    return _epilogue(body, signature, opset, result, [], lambda name, step: name)


def _slice(body: _Body) -> None:
    """x, some channels of the input."""
    channels = body.given("channels")
    begin, end = (body("Slice", [channels, body.ints(i), body.ints(i + 1)]) for i in (0, 1))
    body("Slice", ["whole", begin, end, body.ints(-1)], "x")


def _placed(body: _Body, signature: Signature, result: str) -> str:
    """Among the other channels, which stay as they are: x + -0 is x, while x + 0 would make 0 of
    -0."""
    around = body.given("around")
    if not signature.into:
        return body("Pad", [result, around])
    return body("Add", [body.load("written"), body("Pad", [result, around, body("Const", -0.0)])])


def _squeeze_excite(body: _Body, signature: Signature, opset: int) -> str:
    """x [N, H, W, C] times a gate [N, 1, 1, C]."""
    x = body.load("x")
    result = (
        body("ReduceMean", [x, body.ints(1, 2)], keepdims=0)
        if opset >= 18
        else body("ReduceMean", [x], axes=[1, 2], keepdims=0)
    )
    for step, weight, bias in zip(
        signature.steps, ("weight", "excite"), ("squeeze_bias", "excite_bias"), strict=True
    ):
        product = body("MatMul", [result, body("Transpose", [body.load(weight)], perm=[1, 0])])
        biased = body("Add", [product, body.convert(bias, DType.F32, body.dtype)])
        result = step.row.body(body, opset, biased, "", step.params)
    gate = body("Unsqueeze", [result, body.ints(1, 2)])
    return body("Mul", [x, gate])


def _layout(body: _Body, signature: Signature, opset: int) -> str:
    to_last = signature.kind == "to_nhwc"
    perms = TO_CHANNELS_LAST if to_last else TO_CHANNELS_FIRST
    result = body("Transpose", [body.load("x")], perm=perms[signature.rank])
    if signature.padding and to_last:
        pads = [0] * (2 * signature.rank - 1)
        result = body("Pad", [result, body.ints(*pads, signature.padding)])
    elif signature.padding:
        result = body("Slice", [result, body.ints(0), body.ints(-signature.padding), body.ints(1)])
    return _epilogue(body, signature, opset, result, [], lambda name, step: name)


def _name(signature: Signature, nodes: Sequence[NodeProto]) -> str:
    return "_".join(
        [
            *_words(signature, nodes),
            *(["sliced"] if signature.sliced else []),
            *filter(None, [signature.part.value]),
        ]
    )


def _words(signature: Signature, nodes: Sequence[NodeProto]) -> list[str]:
    steps = [*(step.name for step in signature.steps), signature.dtype.value]
    if signature.kind in _POOLS:
        return [_POOLS[signature.kind], "nhwc", *steps]
    if signature.sampling is not None:
        return ["Resize_nhwc", *signature.sampling.words, *steps]
    words = [_LAYOUTS.get(signature.kind) or _FUSED[signature.kind], *steps]
    if signature.padding:
        words.append(f"pad{signature.padding}")
    if signature.rank == 3:
        words.append("1d")
    if signature.planes is not None:
        words += (
            ["nchw"] if signature.planes is signature.dtype else ["nchw", signature.planes.value]
        )
    if signature.to_nchw:
        words.append("to_nchw")
    if any(step.params for step in signature.steps):
        text = b"".join(node.SerializeToString(deterministic=True) for node in nodes)
        words.append(hashlib.sha256(text).hexdigest()[:6])
    return words
