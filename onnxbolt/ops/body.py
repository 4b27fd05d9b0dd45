"""Nodes of a function body in the making, and how an epilogue's steps are written into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from onnx import AttributeProto, NodeProto, helper, numpy_helper

from onnxbolt.dtypes import DType
from onnxbolt.epilogues import PRODUCT, Step

AttributeType: TypeAlias = AttributeProto.AttributeType  # e.g. AttributeProto.INTS

REST = 2**31 - 1  # the end of all axes
# the attribute of Constant that holds a value of a type
_VALUES = {
    AttributeProto.FLOAT: "value_float",
    AttributeProto.FLOATS: "value_floats",
    AttributeProto.INT: "value_int",
    AttributeProto.INTS: "value_ints",
}


class Body:
    """Nodes of a function in the making; the callable is what epilogues/step.py names `Emit`.

    `body("Relu", [x])` appends a node and returns the name of its output; `body("Const", 1.0)` is a
    scalar. bfloat16 is computed in fp32, as the kernels do: neither ONNX (Conv, below opset 22) nor
    ONNX Runtime has it for most ops.
    """

    def __init__(self, stored: DType) -> None:
        in_fp32 = stored is DType.BF16 or stored.is_code
        self.stored, self.dtype = stored, DType.F32 if in_fp32 else stored
        self.first_param = 0  # the index of the next step's parameters in the node's attribute
        self.nodes: list[NodeProto] = []
        self.outputs = ["y"]

    def __call__(
        self,
        op: str,
        inputs: Sequence[str] | float | tuple[int, ...],
        output: str = "",
        **attributes: object,
    ) -> str:
        if op == "Const" and isinstance(inputs, tuple):
            return self._constant(np.array(inputs, np.int64), output)
        if op == "Const":
            return self._constant(np.array(inputs, np.float32).astype(self.dtype.numpy), output)
        if op == "Given":
            assert isinstance(inputs, int)  # the number of the parameter
            return self._parameter(inputs)
        name = output or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))  # type: ignore[arg-type]
        return name

    def ints(self, *values: int) -> str:
        """A constant vector of int64."""
        return self._constant(np.array(values, np.int64))

    def integer(self, value: int) -> str:
        """A constant scalar of int64."""
        return self._constant(np.array(value, np.int64))

    def lowest(self, dtype: DType) -> str:
        """The least finite number of an element type as a constant scalar of it."""
        return self._constant(np.array(np.finfo(dtype.numpy).min))

    def _constant(self, value: np.ndarray, output: str = "") -> str:
        name = output or f"t{len(self.nodes)}"
        tensor = numpy_helper.from_array(value, name)
        self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        return name

    def _parameter(self, index: int) -> str:
        """A parameter of the step at hand, as the calling node has it, as a scalar."""
        params = self.given("epilogue_params", AttributeProto.FLOATS)
        return self("Gather", [params, self.integer(self.first_param + index)], axis=0)

    def convert(self, name: str, have: DType, want: DType) -> str:
        """`name` in another element type, by a Cast where these differ."""
        return name if have is want else self("Cast", [name], to=want.onnx)

    def reshape(self, name: str, *sizes: int | str) -> str:
        """`name` with other sizes: numbers (0: the size at that place) and names of vectors.

        None may be -1, which ONNX Runtime refuses where a tensor is empty. Its optimizer would
        write -1 for a size that it does not know in a Concat right before a Reshape; hence the Abs.
        """
        parts = [self.ints(size) if isinstance(size, int) else size for size in sizes]
        return self("Reshape", [name, self("Abs", [self("Concat", parts, axis=0)])])

    def size(self, name: str, axis: int, end: int | None = None) -> str:
        """The size of an axis, or the product of those up to `end`, as a vector."""
        begin, last = self.ints(axis), self.ints((axis + 1 if end is None else end) or REST)
        sizes = self("Slice", [self("Shape", [name]), begin, last])
        return sizes if end is None else self("ReduceProd", [sizes], keepdims=1)

    def load(self, name: str) -> str:
        """An input in the type that the body computes in; codes as they are."""
        return name if self.stored.is_code else self.convert(name, self.stored, self.dtype)

    def widen(self, name: str) -> str:
        """`name` in float32, in which the body computes from here on."""
        result = self.convert(name, self.dtype, DType.F32)
        self.dtype = DType.F32
        return result

    def store(self, name: str, dtype: DType | None = None) -> None:
        """Make `name` an output, too, as it is stored: in the type `dtype`, by default x's."""
        dtype = dtype or self.stored
        self.outputs.append("stored")
        if self.dtype is dtype:
            self("Identity", [name], "stored")
        else:
            self("Cast", [name], "stored", to=dtype.onnx)

    def refer(self, attributes: Mapping[str, AttributeType]) -> None:
        """Give the last node attributes that it takes from the calling node, each with its type."""
        for name, kind in attributes.items():
            self.nodes[-1].attribute.append(
                AttributeProto(name=name, ref_attr_name=name, type=kind)
            )

    def given(self, name: str, kind: AttributeType = AttributeProto.INTS) -> str:
        """An attribute of the calling node as a tensor: a number as a scalar in float32 or int64,
        several as a vector. `kind` is the attribute's type."""
        result = self("Constant", [])
        self.nodes[-1].attribute.append(
            AttributeProto(name=_VALUES[kind], ref_attr_name=name, type=kind)
        )
        return result


@dataclass(frozen=True)
class Arranged:
    """How an epilogue meets a body whose values do not lie as the node's tensors do: by default
    they lie so."""

    # an operand's name, and its step, to the name of what the step reads
    operand: Callable[[str, Step], str] = lambda name, step: name
    # a value to its name as it is stored
    stored: Callable[[str], str] = lambda name: name
    # a value and a further product's weight to the product; None: a MatMul
    product: Callable[[str, str], str] | None = None


AS_STORED = Arranged()


def epilogue(
    body: Body,
    steps: Sequence[Step],
    opset: int,
    result: str,
    operands: Sequence[str] = (),
    arranged: Arranged = AS_STORED,
) -> str:
    """Append `steps` behind the value `result`; the name of what they make of it. `operands` names
    an input for each step that takes one."""
    remaining = iter(operands)
    for step in steps:
        operand = _operand(body, step, remaining, arranged) if step.row.operand else ""
        if step.row.stores:
            body.store(arranged.stored(result), step.row.values)
        elif step.name == PRODUCT and arranged.product is not None:
            result = arranged.product(result, operand)
        else:
            result = step.row.body(body, opset, result, operand, step.params)
        body.first_param += len(step.row.params)
    return result


def _operand(body: Body, step: Step, remaining: Iterator[str], arranged: Arranged) -> str:
    """The next operand in the type that the body computes in; vectors are stored in float32."""
    name = next(remaining)
    if step.row.operand == "vector":
        return arranged.operand(body.convert(name, DType.F32, body.dtype), step)
    return arranged.operand(body.load(name), step)
