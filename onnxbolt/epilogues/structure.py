"""Steps that are no function of one value: a further product, a second output, and a mean. Matching
and planning put them into an epilogue; they have no patterns here."""

from __future__ import annotations

from onnxbolt.epilogues.step import Emit, EpilogueStep, unary


def _product(emit: Emit, opset: int, x: str, operand: str, params: tuple[float, ...]) -> str:
    return emit("MatMul", [x, emit("Transpose", [operand], perm=[1, 0])])


# a further product (Bolt, section 3.1.1) by a weight [N, K]; behind a convolution a 1x1 one's
# [N, 1, 1, K]
GEMM = EpilogueStep(
    "Gemm", body=_product, reference=lambda x, weight: x @ weight.T, cost=0, operand="weight"
)

# in front of a further product: the result so far is the node's second output, too
STORE = EpilogueStep("Store", body=unary("Identity"), reference=lambda x, _: x, cost=0)

# the mean over each image's pixels behind a convolution: a global average pooling; but for a
# conversion the last step
MEAN = EpilogueStep(
    "Mean",
    body=unary("GlobalAveragePool"),
    reference=lambda x, _: x.mean((1, 2), keepdims=True),
    functor="Mean",
    cost=1,
)
