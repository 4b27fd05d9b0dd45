"""Steps that are not functions of single values: a further product, a second output, a mean, a
gate, and a rotation of pairs. Matching and planning insert them into epilogues, so they have no
patterns here."""

from __future__ import annotations

import numpy as np

from onnxbolt.epilogues.step import Array, Emit, EpilogueStep, binary, unary


def _product(emit: Emit, opset: int, x: str, operand: str, params: tuple[float, ...]) -> str:
    return emit("MatMul", [x, emit("Transpose", [operand], perm=[1, 0])])


# a further product (Bolt, section 3.1.1) with a weight [N, K]; behind a convolution a 1x1
# convolution with a weight [N, 1, 1, K]
GEMM = EpilogueStep(
    "Gemm", body=_product, reference=lambda x, weight: x @ weight.T, cost=0, operand="weight"
)

# in front of a further product: the result so far is also the node's second output
STORE = EpilogueStep("Store", body=unary("Identity"), reference=lambda x, _: x, cost=0, stores=True)

# the mean over each image's pixels behind a convolution (global average pooling); only a conversion
# may follow
MEAN = EpilogueStep(
    "Mean",
    body=unary("GlobalAveragePool"),
    reference=lambda x, _: x.mean((1, 2), keepdims=True),
    functor="Mean",
    cost=1,
)

# A gate multiplies by the other half of a product that has twice the columns of the result
# (ops/glu/), to which GateBias adds a vector first; steps in front of it have one half alone. The
# operand of bodies and references is the other half as the gate multiplies by it.
GATE, GATE_BIAS = (
    EpilogueStep(
        name,
        body=binary("Mul"),
        reference=lambda x, half: x * half,
        functor=name,
        cost=2,
        operand=operand,
        gates=True,
    )
    for name, operand in (("Gate", ""), ("GateBias", "vector"))
)


def _rotate(emit: Emit, opset: int, x: str, operand: str, params: tuple[float, ...]) -> str:
    places = [emit("Const", (place,)) for place in (0, 1)]
    (a, b), (cos, sin) = (
        [emit("Gather", [pairs, place], axis=-1) for place in places] for pairs in (x, operand)
    )
    first = emit("Sub", [emit("Mul", [a, cos]), emit("Mul", [b, sin])])
    second = emit("Add", [emit("Mul", [b, cos]), emit("Mul", [a, sin])])
    return emit("Concat", [first, second], axis=-1)


def _rotated(x: Array, operand: Array) -> Array:
    (a, b), (cos, sin) = np.moveaxis(x, -1, 0), np.moveaxis(operand, -1, 0)
    return np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)


# A rotation of each pair of neighbouring columns (a, b) to (a cos - b sin, b cos + a sin). Bodies
# and references have the two of a pair, and cos and sin, along a last axis; a node's operand is a
# table that repeats along rows and columns (ops/rotary/).
ROTATE = EpilogueStep(
    "Rotate", body=_rotate, reference=_rotated, functor="Rotate", cost=4, operand="rotation"
)
