"""Statistics of rows in function bodies: written behind a product, and read by a product whose
input they normalize (docs/decisions/norms-in-products.md).

They are float32 [columns / 64, rows, 2]: of each 64 columns of a row the mean, and the sum of
squared differences from it. Bodies compute them in float32, as kernels do.
"""

from __future__ import annotations

from onnxbolt.dtypes import DType
from onnxbolt.epilogues import FOLDED_NORMS, Step
from onnxbolt.ops.body import Body
from onnxbolt.problems.gemm_moments import PART

NAME = "statistics"  # name of the input and of the output
# from this opset on an operator's axes are an input
_AXES_AS_INPUT = {"ReduceSum": 13, "ReduceMean": 18}


def write(body: Body, opset: int, result: str) -> None:
    """Make the statistics of the rows of `result` an output, of the values as they are stored."""
    stored = body.convert(result, body.dtype, body.stored)
    count = body("Div", [body.size(result, -1), body.ints(PART)])
    rows = body.size(result, 0, -1)
    columns = body.reshape(
        body.convert(stored, body.stored, DType.F32), body("Mul", [rows, count]), body.ints(PART)
    )
    means = _reduced(body, opset, "ReduceMean", columns, 1)
    distances = body("Sub", [columns, means])
    squares = _reduced(body, opset, "ReduceSum", body("Mul", [distances, distances]), 1)
    entries = body.reshape(body("Concat", [means, squares], axis=1), rows, count, 2)
    body("Transpose", [entries], NAME, perm=[1, 0, 2])
    body.outputs.append(NAME)


def normalize(body: Body, opset: int, step: Step, product: str, sums: str) -> str:
    """The product of normalized rows, from that of the rows as they are, all in float32. `sums`:
    those of the weight's columns, where `step` takes the mean away."""
    means, squares = (body("Gather", [NAME, body.ints(i)], axis=2) for i in (0, 1))
    mean = _reduced(body, opset, "ReduceMean", means, 0)
    distances = body("Sub", [means, mean])
    between = _reduced(body, opset, "ReduceMean", body("Mul", [distances, distances]), 0)
    within = body(
        "Div", [_reduced(body, opset, "ReduceMean", squares, 0), body("Const", float(PART))]
    )
    square = body("Add", [within, between])
    centered = FOLDED_NORMS[step.name]
    if not centered:
        square = body("Add", [square, body("Mul", [mean, mean])])
    deviation = body("Sqrt", [body("Add", [square, body("Const", step.params[0])])])
    shape = _of_column(body, product)
    if centered:
        means_of_rows = body("Reshape", [mean, shape])
        product = body("Sub", [product, body("Mul", [means_of_rows, sums])])
    return body("Div", [product, body("Reshape", [deviation, shape])])


def _of_column(body: Body, tensor: str) -> str:
    """The shape of a column of a tensor of any rank."""
    leading = body("Slice", [body("Shape", [tensor]), body.ints(0), body.ints(-1)])
    return body("Concat", [leading, body.ints(1)], axis=0)


def _reduced(body: Body, opset: int, op: str, tensor: str, axis: int) -> str:
    """A reduction along an axis, which stays."""
    if opset < _AXES_AS_INPUT[op]:
        return body(op, [tensor], axes=[axis], keepdims=1)
    return body(op, [tensor, body.ints(axis)], keepdims=1)
