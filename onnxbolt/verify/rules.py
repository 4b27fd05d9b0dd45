"""One rule per operator: its value in float64, and bounds of its result's errors. Operators without
a rule are measured."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import FunctionProto, NodeProto

from onnxbolt import ops
from onnxbolt.graph.edit import MOVEMENT
from onnxbolt.ops.base import Piece
from onnxbolt.ops.functions import DOMAIN
from onnxbolt.verify import code_rules
from onnxbolt.verify.bounds import Bounded, Error, bounded, is_float, is_set
from onnxbolt.verify.code_rules import as_numbers, has_errors, moved_by
from onnxbolt.verify.codes import is_code, is_float_code
from onnxbolt.verify.functions import functions
from onnxbolt.verify.limits import UNKNOWN, Arithmetic, unit
from onnxbolt.verify.products import (
    convolution,
    product,
    terms_of,
    transposed_convolution,
)
from onnxbolt.verify.standard import WITHOUT_FLOAT64, Standard

Env = dict[str, Bounded]
_MEANS = {"AveragePool", "GlobalAveragePool", "ReduceMean", "ReduceSum"}
# operators whose output errors are at most the largest error of their inputs
_LARGEST = {"MaxPool", "GlobalMaxPool", "ReduceMax"}
_LAYERS = {"Conv", "ConvTranspose", "MatMul"}  # they round what they read (Call.layer_input)
_WEIGHTLESS = 60.0  # exp(-60) of the largest power is no weight, for any number of terms
_MEASURED_FACTOR = 4.0  # factor on a limit measured with one draw of the errors' signs
# Draws for integers, each tried with the opposite signs as well. Two values whose order is within
# their errors change places in a draw with a probability of 1/2, so that 1 of 1,024 such pairs is
# overlooked.
_CHOICES = 10

_CONSTANTS = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}


@dataclass
class Analysis:
    """The data that rules share. `measured` collects the op types without a rule; `in_fp32` is
    True once a value was computed in fp32, so that those behind it are not exact."""

    standard: Standard
    functions: Mapping[str, FunctionProto]
    measured: dict[str, None] = field(default_factory=dict)
    in_fp32: bool = False

    def run(self, nodes: Sequence[NodeProto], env: Env, arithmetic: Arithmetic) -> None:
        """Add the tensors that `nodes`, in order, compute from `env` to `env`."""
        for node in nodes:
            call = Call(self, node, [env.get(name) for name in node.input], arithmetic, env)
            env.update(zip(filter(None, node.output), call.results(), strict=False))


@dataclass
class Call:
    """One node with its operands."""

    analysis: Analysis
    node: NodeProto
    inputs: list[Bounded | None]
    arithmetic: Arithmetic
    env: Env

    def __post_init__(self) -> None:
        self.attributes = {
            a.name: onnx.helper.get_attribute_value(a)
            for a in self.node.attribute
            if not a.ref_attr_name
        }
        self.dtype = next(
            (x.dtype for x in self.inputs if x is not None and is_float(x.dtype)),
            np.dtype(np.float32),
        )

    def results(self) -> list[Bounded]:
        """One result for each output. Raises one of RUNTIME_ERRORS if ONNX Runtime cannot run an
        operator without a rule."""
        op = self.node.op_type
        if self.node.domain == DOMAIN:
            return self._fused()
        if self.node.domain in ("", "ai.onnx"):
            if op in functions() and all(
                x is not None and is_float(x.dtype) for x in self.inputs[:1]
            ):
                return [self._function()]
            if op in MOVEMENT:
                return self._moved()
            if op in _MEANS | _LARGEST and len(self.node.output) == 1:
                dtype = self._input(0).dtype
                if is_float(dtype) or (op in _LARGEST and is_code(dtype)):
                    return [self._reduced()]
            if (rule := _RULES.get(op)) is not None and (found := rule(self)) is not None:
                return [found]
        return self._measured()

    @property
    def given(self) -> list[Bounded]:
        return [x for x in self.inputs if x is not None]

    def of_both(self, propagate: Callable[[list[np.ndarray]], np.ndarray]) -> list[Error]:
        """For each kind of error, the result of `propagate` for the operands' absolute errors; 0 if
        they have none."""
        return [
            (
                propagate([x.absolute(x.errors[kind]) for x in self.given])
                if any(is_set(x.errors[kind]) for x in self.given)
                else 0.0
            )
            for kind in (0, 1)
        ]

    def _function(self) -> Bounded:
        function = functions()[self.node.op_type]
        operands = [None if x is None else x.value for x in self.inputs]
        with np.errstate(all="ignore"):
            value = function.value(self.attributes, *operands)
            found = self.of_both(
                lambda errors: function.error(
                    self.attributes, value, [x.value for x in self.given], errors
                )
            )
        own = self.arithmetic.function(self.dtype, function.own, self.node.op_type)
        local = own * np.maximum(np.abs(value), 1.0) if own else 0.0
        if function.rounded_factor and not self.arithmetic.kernel:
            local = local + unit(self.dtype) * np.where(value < 0, np.abs(value), 0.0)
        return bounded(
            value,
            self.dtype,
            found[0],
            found[1],
            self.arithmetic.rounding(self.dtype) if function.rounds else 0.0,
            local,
        )

    def _element(self) -> np.dtype:
        assert self.arithmetic.element is not None
        return self.arithmetic.element

    def _moved(self) -> list[Bounded]:
        """Values or codes and each kind of error, moved alike; an error that is relative for all
        values stays relative. Integers that rounding may change have no errors that move: it may
        change all of the results."""
        moving = [i for i, x in enumerate(self.inputs) if x is not None and has_errors(x.dtype)]
        if self.node.op_type == "Pad":
            moving = moving[:1]
        dtype = self._input(moving[0]).dtype if moving else None
        values = self._run({i: as_numbers(self._input(i).value) for i in moving})
        if any(not (x.exact or has_errors(x.dtype)) for x in self.given):
            return [
                Bounded(value, dtype or value.dtype, np.full(value.shape, np.inf))
                for value in values
            ]
        kinds: list[list[Error]] = []
        for kind in (0, 1):
            errors = [self._input(i).errors[kind] for i in moving]
            if (
                not any(isinstance(error, np.ndarray) for error in errors)
                and len(set(map(float, errors))) <= 1
            ):
                kinds.append([errors[0] if errors else 0.0] * len(values))
            else:
                kinds.append(
                    list(
                        self._run(
                            {
                                i: self._input(i).absolute(self._input(i).errors[kind])
                                for i in moving
                            },
                            padded=0.0,
                        )
                    )
                )
        if dtype is not None and is_float_code(dtype):
            values = [value.astype(dtype) for value in values]
        return [
            Bounded(value, dtype or value.dtype, *errors)
            for value, *errors in zip(values, *kinds, strict=True)
        ]

    def _reduced(self) -> Bounded:
        """Means, sums and maxima, whose errors are reduced as the values are."""
        x = self._input(0)
        value = self._run({0: x.value})[0]
        found = self.of_both(lambda errors: self._run({0: errors[0]})[0])
        if self.node.op_type in _LARGEST:
            return bounded(value, x.dtype, found[0], found[1])
        terms = int(
            np.prod(self.attributes.get("kernel_shape", max(x.value.size // max(value.size, 1), 1)))
        )
        local = self.arithmetic.accumulation(terms) * self._run({0: np.abs(x.value)})[0]
        return bounded(value, x.dtype, found[0], found[1], self.arithmetic.rounding(x.dtype), local)

    def _measured(self) -> list[Bounded]:
        """The results of an operator without a rule: computed in fp32 by ONNX Runtime, with its
        operands' errors tried with random signs."""
        floats = {i: x for i, x in enumerate(self.inputs) if x is not None and has_errors(x.dtype)}
        if all(x.exact for x in floats.values()):
            moved = {i: x.value for i, x in floats.items()}
            return [self._of_exact(value) for value in self._run(moved, np.float32)]
        self.analysis.measured[self.node.op_type] = None
        values = self._run({i: x.value for i, x in floats.items()}, np.float32)
        spreads = [self._spreads(kind, floats, values) for kind in (0, 1)]
        return [
            self._of_exact(value, *errors) for value, *errors in zip(values, *spreads, strict=True)
        ]

    def _spreads(
        self, kind: int, floats: Mapping[int, Bounded], values: Sequence[np.ndarray]
    ) -> list[Error]:
        """For each of `values`, how much one kind of errors of the operands changes it: floats by
        one draw of the errors' signs, integers by several, until all have changed."""
        spreads: list[Error] = [0.0 for _ in values]
        for found in self._draws(kind, floats):
            spreads = [
                spread if is_set(spread) else _spread(value, other)
                for spread, value, other in zip(spreads, values, found, strict=True)
            ]
            if all(map(is_set, spreads)):
                break
        return spreads

    def _draws(self, kind: int, floats: Mapping[int, Bounded]) -> Iterator[list[np.ndarray]]:
        """The node's results with its operands changed by one kind of errors, with random signs and
        then with the opposite ones; none where the operands have no such errors."""
        if not any(is_set(x.errors[kind]) for x in floats.values()):
            return
        rng = np.random.default_rng(0)
        for _ in range(_CHOICES):
            changes = {
                i: rng.choice([-1.0, 1.0], x.value.shape) * x.absolute(x.errors[kind])
                for i, x in floats.items()
            }
            for sign in (1.0, -1.0):
                moved = {i: moved_by(x, sign * changes[i]) for i, x in floats.items()}
                yield self._run(moved, np.float32)

    def _of_exact(
        self, value: np.ndarray, arithmetic: Error = 0.0, operands: Error = 0.0
    ) -> Bounded:
        """A result with the errors of an unknown operator: roundings of values as large as the
        tensor's largest."""
        if not is_float(value.dtype):
            return Bounded(value, value.dtype, arithmetic, operands)
        finite = np.abs(value[np.isfinite(value)])
        local = max(4 * unit(self.dtype), UNKNOWN) * float(finite.max(initial=0.0))
        return bounded(
            value,
            self.dtype,
            arithmetic,
            operands,
            self.arithmetic.rounding(self.dtype),
            local if self.given else 0.0,
        )

    def _input(self, index: int) -> Bounded:
        found = self.inputs[index]
        assert found is not None  # ONNX has it as a required one
        return found

    def _run(
        self,
        floats: Mapping[int, np.ndarray],
        dtype: type | None = None,
        padded: float | None = None,
    ) -> list[np.ndarray]:
        """The node's results in ONNX Runtime, with other values for its float operands; `padded` is
        the value that Pad appends."""
        self.analysis.in_fp32 |= dtype is np.float32 or self.node.op_type in WITHOUT_FLOAT64
        values = [None if x is None else x.value for x in self.inputs]
        for i, value in floats.items():
            values[i] = value
        if self.node.op_type == "Pad" and len(values) > 2 and values[2] is not None:
            # in the type of what is padded, which may be errors in place of codes
            value = values[2] if padded is None else np.full(values[2].shape, padded)
            values[2] = value.astype(np.asarray(values[0]).dtype)
        return self.analysis.standard.run(
            self.node, values, {name: x.value for name, x in self.env.items()}, dtype
        )

    def _fused(self) -> list[Bounded]:
        """One of our nodes: its function body, with the node's attributes. For a node that writes a
        part of its output, only that part. Pieces by themselves where that takes much memory."""
        op, shapes = ops.of_type(self.node.op_type), [x.value.shape for x in self.given]
        if op is not None and (pieces := op.pieces(self.attributes, shapes)):
            return [self._in_pieces(pieces)]
        return self._as_whole()

    def _in_pieces(self, pieces: Sequence[Piece]) -> Bounded:
        """The result of one of our nodes, piece by piece."""
        parts = [self._piece(piece) for piece in pieces]
        ends = [[part.stop for part in piece.output] for piece in pieces]
        shape = (*np.max(ends, axis=0), *parts[0].value.shape[len(ends[0]) :])
        value = np.empty(shape)
        errors = [np.empty(shape, np.float32) for _ in parts[0].errors]
        for piece, part in zip(pieces, parts, strict=True):
            value[piece.output] = part.value
            for whole, error in zip(errors, part.errors, strict=True):
                whole[piece.output] = part.absolute(error)
        return Bounded(value, parts[0].dtype, *errors)

    def _piece(self, piece: Piece) -> Bounded:
        node = onnx.NodeProto()
        node.CopyFrom(self.node)
        del node.attribute[:]
        attributes = {**self.attributes, **piece.attributes}
        node.attribute.extend(onnx.helper.make_attribute(*item) for item in attributes.items())
        inputs = [x.part(at) for x, at in zip(self.given, piece.inputs, strict=True)]
        (result,) = Call(self.analysis, node, [*inputs], self.arithmetic, {})._as_whole()
        return result

    def _as_whole(self) -> list[Bounded]:
        """One of our nodes by its function body."""
        function = self.analysis.functions[self.node.op_type]
        given = {attribute.name: attribute for attribute in self.node.attribute}
        nodes, results = list(function.node), list(function.output)
        if "part_tensor" in given:
            nodes, results[0] = _own_part(nodes, results[0])
        env: Env = {
            name: x for name, x in zip(function.input, self.inputs, strict=True) if x is not None
        }
        stored, read = set[str](), _read_as_stored(nodes, results)
        unscaled = _multiplied(nodes) if self.arithmetic.codes else set()
        for node in nodes:
            codes = not unscaled.isdisjoint(node.output)
            arithmetic = self.arithmetic.of_codes() if codes else self.arithmetic
            self.analysis.run([_bound(node, given)], env, arithmetic)
            for name in read.intersection(node.output):
                env[name] = self._ended_by(node, env[name])
                stored.add(name)
        makers = {name: node for node in nodes for name in node.output}
        return [
            env[name] if name in stored else self._ended_by(makers.get(name), env[name])
            for name in results
        ]

    def _ended_by(self, maker: NodeProto | None, x: Bounded) -> Bounded:
        """A body's result; the rounding of a Cast has been counted."""
        cast = maker is not None and maker.op_type in ("Cast", "CastLike")
        return self.ended(x, x.dtype, 0.0 if cast else unit(x.dtype))

    def layer_input(self, x: Bounded) -> Bounded:
        """The input of a product: in a kernel of several layers, the rounded result of the previous
        layer."""
        if not self.arithmetic.kernel or not is_set(x.arithmetic):
            return x
        return self.ended(x, x.dtype, unit(self._element()))

    def ended(self, x: Bounded, dtype: np.dtype, rounding: float) -> Bounded:
        """The result of a kernel's layer, stored as `dtype`; standard operators have already
        rounded it."""
        if not self.arithmetic.kernel or not is_float(dtype):
            return x
        if not is_set(x.arithmetic):
            return rounded(x, dtype, rounding)
        local: np.ndarray | float = 0.0
        if self.arithmetic.published:
            absolute, relative = self.arithmetic.approximation
            local = absolute + relative * np.abs(x.value)
        return bounded(x.value, dtype, x.arithmetic, x.operands, rounding, local)

    def biased(self, y: Bounded, bias: Bounded | None) -> Bounded:
        """A product with its bias added, rounded as one operator's result."""
        rounding = self.arithmetic.rounding(self.dtype)
        if bias is None:
            return bounded(y.value, self.dtype, y.arithmetic, y.operands, rounding)
        errors = [
            y.absolute(ours) + bias.absolute(theirs) if is_set(ours) or is_set(theirs) else 0.0
            for ours, theirs in zip(y.errors, bias.errors, strict=True)
        ]
        return bounded(y.value + bias.value, self.dtype, errors[0], errors[1], rounding)


def _own_part(nodes: Sequence[NodeProto], result: str) -> tuple[list[NodeProto], str]:
    """The body of a node that writes a part of a tensor, without its last operators (Pad, and Add
    to the existing values), and the name of that part.

    The Cast to the stored type that a bfloat16 body ends with stays.
    """
    last = max(i for i, node in enumerate(nodes) if node.op_type == "Pad")
    part = nodes[last].input[0]
    if nodes[-1].op_type != "Cast":
        return list(nodes[:last]), part
    stored = NodeProto()
    stored.CopyFrom(nodes[-1])
    stored.input[0] = part
    return [*nodes[:last], stored], result


def _read_as_stored(nodes: Sequence[NodeProto], results: Sequence[str]) -> set[str]:
    """The results of a body that its other operators go on with, as a normalization does with the
    sum that it stores. Products round what they read themselves (`Call.layer_input`)."""
    readers = (node for node in nodes if node.op_type not in _LAYERS)
    return {name for node in readers for name in node.input} & set(results)


def _multiplied(nodes: Sequence[NodeProto]) -> set[str]:
    """The tensors of a body that products read, and those that are moved to these."""
    found = set[str]()
    for node in reversed(nodes):
        if node.op_type in _LAYERS:
            found.update(node.input[:2])
        elif node.op_type in MOVEMENT and not found.isdisjoint(node.output):
            found.update(node.input)
    return found


def _bound(node: NodeProto, given: Mapping[str, onnx.AttributeProto]) -> NodeProto:
    """A body's node with the calling node's attributes instead of references to them."""
    if not any(attribute.ref_attr_name for attribute in node.attribute):
        return node
    copy = NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            copy.attribute.append(attribute)
        elif attribute.ref_attr_name in given:
            copy.attribute.append(given[attribute.ref_attr_name])
            copy.attribute[-1].name = attribute.name
    return copy


def _spread(value: np.ndarray, other: np.ndarray) -> Error:
    """A bound for all elements, from the largest change that was measured; infinite for integers
    that changed and for different shapes."""
    if value.shape != other.shape or (
        not is_float(value.dtype) and not np.array_equal(value, other)
    ):
        return np.full(value.shape, np.inf)
    if not is_float(value.dtype):
        return 0.0
    finite = np.isfinite(value) & np.isfinite(other)
    changes = np.subtract(other, value, where=finite, out=np.zeros(value.shape))
    return np.full(value.shape, _MEASURED_FACTOR * float(np.abs(changes).max(initial=0.0)))


def _cast(call: Call) -> Bounded | None:
    return _converted(call, onnx.helper.tensor_dtype_to_np_dtype(int(call.attributes["to"])))


def _cast_like(call: Call) -> Bounded | None:
    return _converted(call, call.given[1].dtype)


def _converted(call: Call, target: np.dtype) -> Bounded | None:
    x = call.given[0]
    if not (is_float(x.dtype) and is_float(target)):
        return code_rules.cast(x, target, call.attributes)
    rounding = unit(target) if unit(target) > unit(x.dtype) else 0.0
    if call.arithmetic.kernel and x.value.ndim <= 1:
        rounding = 0.0  # kernels read numbers, and vectors along the channels, in fp32
    return (
        rounded(x, target, rounding)
        if call.arithmetic.kernel
        else bounded(x.value, target, x.arithmetic, x.operands, rounding)
    )


def rounded(x: Bounded, dtype: np.dtype, rounding: float) -> Bounded:
    """`x` as a kernel stores it in `dtype`. If `x` is known exactly, its rounding is known, too,
    and counts as an operand's error.

    Standard operators may do without: ONNX Runtime's CPU provider computes fp16 in fp32, and then
    drops a Cast there and back.
    """
    if not rounding or is_set(x.arithmetic):
        return bounded(x.value, dtype, x.arithmetic, x.operands, rounding)
    with np.errstate(over="ignore"):
        value = x.value.astype(dtype).astype(np.float64)
    operands = (
        x.operands + rounding
        if isinstance(x.operands, float)
        else x.operands + rounding * x.magnitude
    )
    return bounded(value, dtype, 0.0, operands)


def _constant(call: Call) -> Bounded:
    ((name, given),) = call.attributes.items()
    if name == "value":
        value = onnx.numpy_helper.to_array(given)
    elif name in _CONSTANTS:
        value = np.array(given, _CONSTANTS[name])
    else:
        value = call.analysis.standard.run(call.node, [], {})[0]
    error = unit(value.dtype) if value.dtype.itemsize == 2 else 0.0
    if value.dtype == np.float16 and np.all(np.abs(value) == np.finfo(np.float16).max):
        error = 0.0  # the lowest number excludes keys, in a kernel as in the body
    # the body of a node has 16 bits of a constant, a kernel has 24
    if error and call.arithmetic.kernel:
        return dataclasses.replace(Bounded.of(value), arithmetic=error)
    return Bounded.of(value, error)


def _dequantize(call: Call) -> Bounded | None:
    return code_rules.dequantize_linear(call.given, call.attributes, call.arithmetic)


def _quantize(call: Call) -> Bounded | None:
    return code_rules.quantize_linear(call.given, call.attributes, call.arithmetic)


def _conv(call: Call) -> Bounded | None:
    x, weight, *bias = call.given
    rank = x.value.ndim - 2
    if call.attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        return None
    strides, dilations = (
        list(call.attributes.get(name, [1] * rank)) for name in ("strides", "dilations")
    )
    pads = list(call.attributes.get("pads", [0] * (2 * rank)))
    multiply = convolution(int(call.attributes.get("group", 1)), strides, pads, dilations)
    y = product(call.layer_input(x), weight, multiply, terms_of(weight.value), call.arithmetic)
    return call.biased(y, _along_channels(bias[0], rank) if bias else None)


def _along_channels(bias: Bounded, rank: int) -> Bounded:
    """A vector in front of axes for pixels, with its errors."""
    errors = (
        error.reshape(-1, *[1] * rank) if isinstance(error, np.ndarray) else error
        for error in bias.errors
    )
    return Bounded(bias.value.reshape(-1, *[1] * rank), bias.dtype, *errors)


def _conv_transpose(call: Call) -> Bounded | None:
    x, weight, *bias = call.given
    rank = x.value.ndim - 2
    if call.attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        return None
    if call.attributes.get("output_shape"):
        return None
    group = int(call.attributes.get("group", 1))
    strides, dilations = (
        list(call.attributes.get(name, [1] * rank)) for name in ("strides", "dilations")
    )
    padding = list(call.attributes.get("output_padding", [0] * rank))
    pads = list(call.attributes.get("pads", [0] * (2 * rank)))
    multiply = transposed_convolution(group, strides, pads, dilations, padding)
    taps = [
        -(-k // (s // math.gcd(s, d)))
        for k, s, d in zip(weight.value.shape[2:], strides, dilations, strict=True)
    ]
    terms = weight.value.shape[0] // group * math.prod(taps)
    return call.biased(
        product(call.layer_input(x), weight, multiply, terms, call.arithmetic),
        _along_channels(bias[0], rank) if bias else None,
    )


def _matmul(call: Call) -> Bounded:
    x, weight = call.given
    return call.biased(
        product(call.layer_input(x), weight, np.matmul, x.value.shape[-1], call.arithmetic), None
    )


def _gemm(call: Call) -> Bounded | None:
    if any(call.attributes.get(name, 1.0) != 1.0 for name in ("alpha", "beta")):
        return None
    x, weight, *bias = call.given
    turned = [bool(call.attributes.get(name, 0)) for name in ("transA", "transB")]

    def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (a.T if turned[0] else a) @ (b.T if turned[1] else b)

    return call.biased(
        product(x, weight, multiply, x.value.shape[0 if turned[0] else 1], call.arithmetic),
        bias[0] if bias else None,
    )


def _batch_normalization(call: Call) -> Bounded | None:
    """y = x * s + (bias - mean * s), s = scale / sqrt(variance + epsilon): a few roundings of
    each term, which may be much larger than y. All parameters must be exact."""
    x, *parameters = call.given
    if len(call.node.output) > 1 or call.attributes.get("training_mode", 0):
        return None
    if not all(parameter.exact for parameter in parameters):
        return None
    scale, bias, mean, variance = (
        parameter.value.reshape(-1, *[1] * (x.value.ndim - 2)) for parameter in parameters
    )
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + float(call.attributes.get("epsilon", 1e-5)))
        scaled = x.value * factor
        value = scaled + (bias - mean * factor)
    arithmetic, operands = call.of_both(lambda given: np.abs(factor) * given[0])
    local = 4 * unit(np.dtype(np.float32)) * (np.abs(scaled) + np.abs(mean * factor) + np.abs(bias))
    rounding = call.arithmetic.rounding(x.dtype)
    return bounded(value, x.dtype, arithmetic, operands, rounding, local)


def _softmax(call: Call) -> Bounded | None:
    """A factor of at most exp(2 e) for y_i, where e is the largest error in its row, without values
    that have no weight whatever their error: masks put such ones."""
    x, axis = call.given[0], int(call.attributes.get("axis", -1))

    def largest(errors: np.ndarray) -> np.ndarray:
        weighs = x.value + errors >= x.value.max(axis, keepdims=True) - _WEIGHTLESS
        found: np.ndarray = np.where(weighs, errors, 0.0).max(axis, keepdims=True)
        return found.astype(float)

    with np.errstate(all="ignore"):
        powers = np.exp(x.value - x.value.max(axis, keepdims=True))
        value = powers / powers.sum(axis, keepdims=True)
        found = call.of_both(
            lambda errors: value * np.expm1(np.minimum(2.0 * largest(errors[0]), 700.0))
        )
    local = (
        value * (call.arithmetic.accumulation(x.value.shape[axis]) + 8 * 2.0**-21)
        if value.size
        else 0.0
    )
    return bounded(value, x.dtype, found[0], found[1], call.arithmetic.rounding(x.dtype), local)


def _layer_normalization(call: Call) -> Bounded | None:
    """z = (x - mean) / s: dz = (dx - mean(dx) - z mean(z dx)) / s, with the magnitudes of all
    terms."""
    x, axis = call.given[0], int(call.attributes.get("axis", -1)) % call.given[0].value.ndim
    axes = tuple(range(axis, x.value.ndim))
    mean = x.value.mean(axes, keepdims=True)
    deviation = np.sqrt(
        np.square(x.value - mean).mean(axes, keepdims=True)
        + float(call.attributes.get("epsilon", 1e-5))
    )
    z = (x.value - mean) / deviation

    def moved(error: np.ndarray) -> np.ndarray:
        return (
            error
            + error.mean(axes, keepdims=True)
            + np.abs(z) * (np.abs(z) * error).mean(axes, keepdims=True)
        ) / deviation

    terms = int(np.prod(x.value.shape[axis:]))
    errors = [moved(x.absolute(error)) * 1.1 if is_set(error) else 0.0 for error in x.errors]
    local = moved(
        (call.arithmetic.accumulation(terms) + 8 * 2.0**-24) * np.abs(x.value)
    ) + 2.0**-21 * np.abs(z)
    result = bounded(z, x.dtype, errors[0], errors[1], call.arithmetic.rounding(x.dtype), local)
    for op, operand in zip(("Mul", "Add"), call.given[1:], strict=False):
        step = Call(
            call.analysis,
            onnx.helper.make_node(op, ["a", "b"], ["c"]),
            [result, operand],
            call.arithmetic,
            {},
        )
        result = step.results()[0]
    return result


def _resize(call: Call) -> Bounded | None:
    """Nearest neighbours move values; linear interpolation is a weighted mean; cubic weights have
    signs."""
    mode = call.attributes.get("mode", b"nearest")
    x = call.given[0]
    if mode not in (b"nearest", b"linear") or (mode != b"nearest" and not is_float(x.dtype)):
        return None
    value = call._run({0: x.value}, np.float32)[0]
    found = call.of_both(lambda errors: call._run({0: errors[0]}, np.float32)[0])
    places = 2.0**-21 * max(x.value.shape[2:], default=0)  # they are computed in fp32
    local = 0.0 if mode == b"nearest" else places * float(np.abs(x.value).max(initial=0.0))
    return bounded(
        value,
        x.dtype,
        found[0],
        found[1],
        call.arithmetic.rounding(x.dtype) if mode == b"linear" else 2.0**-24,
        local,
    )


def _of_shape(call: Call) -> Bounded:
    """No error of a value reaches a shape."""
    return Bounded.of(call._run({})[0])


_RULES: dict[str, Callable[[Call], Bounded | None]] = {
    "BatchNormalization": _batch_normalization,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Constant": _constant,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "DequantizeLinear": _dequantize,
    "Gemm": _gemm,
    "LayerNormalization": _layer_normalization,
    "MatMul": _matmul,
    "QuantizeLinear": _quantize,
    "Resize": _resize,
    "Shape": _of_shape,
    "Size": _of_shape,
    "Softmax": _softmax,
}
