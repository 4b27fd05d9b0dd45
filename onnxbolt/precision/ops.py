"""Tables of the operations that may run in 16 bits, which `decide` reads.

`is_safe` is a judgement of numerics: in 16 bits these operations lose no more than the rounding of
what they read and write. LayerNormalization, Softmax, ReduceMean, ReduceSum, Attention, pooling and
products are among them because their kernels read 16 bits and accumulate in fp32. Whether ONNX
Runtime has such a kernel is for `kernel_table` to say: a node in a 16-bit type without one would
run on the CPU between two copies.
"""

from __future__ import annotations

from onnxbolt.epilogues import EPILOGUES, steps_of
from onnxbolt.graph.edit import MOVEMENT

_OTHERS_SAFE = frozenset(
    {
        "Abs",
        "ArgMax",
        "ArgMin",
        "Attention",
        "AveragePool",
        "BatchNormalization",
        "Ceil",
        "ConstantOfShape",
        "Conv",
        "ConvTranspose",
        "Dropout",
        "Einsum",
        "Equal",
        "Erf",
        "Floor",
        "Gelu",
        "Gemm",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "Greater",
        "GreaterOrEqual",
        "GroupNormalization",
        "InstanceNormalization",
        "IsNaN",
        "LayerNormalization",
        "Less",
        "LessOrEqual",
        "LogSoftmax",
        "MatMul",
        "Max",
        "MaxPool",
        "Min",
        "Mod",
        "Neg",
        "OneHot",
        "RMSNormalization",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceSum",
        "Resize",
        "Round",
        "ScatterElements",
        "ScatterND",
        "Selu",
        "Sign",
        "Snake",  # canonicalize/snake_form.py
        "Softmax",
        "Softsign",
        "Sqrt",
        "Sum",
        "TensorScatter",
        "ThresholdedRelu",
        "TopK",
    }
)
_SUMS = "sums many terms, which may exceed half precision's range"
_STATE = "carries its state through every step, so that rounding errors accumulate"
_SCALES = "its scales are calibrated in fp32"
_BODY = "its body is typed for fp32"
COMBINES = (
    "adds or multiplies what it scatters, which ONNX Runtime's CPU provider does only in fp32"
)
KEPT = {
    "CumSum": _SUMS,
    "Cos": "rounding a large angle changes its value completely",
    "Exp": "its result exceeds fp16's range for arguments above 11.1",
    "GRU": _STATE,
    "If": _BODY,
    "LRN": "squares its input",
    "LSTM": _STATE,
    "Log": "small arguments become zero, whose logarithm is -inf",
    "Loop": _BODY,
    "Pow": "its result may exceed half precision's range",
    "QuantizeLinear": _SCALES,
    "DequantizeLinear": _SCALES,
    "DynamicQuantizeLinear": _SCALES,
    "RNN": _STATE,
    "Range": "counts by repeated addition",
    "Reciprocal": "its result exceeds half precision's range for small arguments",
    "ReduceL1": _SUMS,
    "ReduceL2": _SUMS,
    "ReduceLogSum": _SUMS,
    "ReduceLogSumExp": _SUMS,
    "ReduceProd": _SUMS,
    "ReduceSumSquare": _SUMS,
    "RoiAlign": "half precision represents coordinates above 512 only to 1/2 pixel",
    "Scan": _BODY,
    "SequenceMap": _BODY,
    "Sin": "rounding a large angle changes its value completely",
}
# operators in KEPT whose result may exceed fp16's range, so that its readers stay in fp32, too
WIDENING = frozenset({"CumSum", "Exp", "Pow", "ReduceProd", "ReduceSumSquare"})
_OTHERS_BOUNDING = frozenset(
    {
        "ArgMax",
        "ArgMin",
        "Cos",
        "Erf",
        "GroupNormalization",
        "InstanceNormalization",
        "LayerNormalization",
        "Log",
        "LpNormalization",
        "MeanVarianceNormalization",
        "RMSNormalization",
        "Reciprocal",
        "Sign",
        "Sin",
        "Softmax",
        "Softsign",
    }
)
ANCHORS = frozenset({"Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"})
POOLING = frozenset({"AveragePool", "GlobalAveragePool", "MaxPool"})
# they move or mix pixels of images; our kernels have them in both 16-bit types
RESAMPLING = frozenset({"DepthToSpace", "Resize", "SpaceToDepth"})
# behind their nodes others may become steps of an epilogue
BEFORE_STEPS = ANCHORS | RESAMPLING | {"BatchNormalization", "GroupNormalization"}
# float inputs by position that are coordinates or counts, not data: fp32 even where ONNX allows
# another type
FP32_INPUTS = {"OneHot": (0, 1), "Resize": (1, 2)}
# they read a float tensor of any type and write none of the same type
ANY_INPUT = frozenset({"Cast", "CastLike", "Shape", "Size"})
EXACT = ("bool", "int8", "uint8")  # types all of whose values either 16-bit type holds exactly


def is_safe(op: str) -> bool:
    """True if the operation may run in 16 bits; epilogue steps may, because they compute in
    fp32."""
    return op in _OTHERS_SAFE or op in MOVEMENT or bool(steps_of(op))


def is_composed(op: str) -> bool:
    """True if ONNX defines the operator by other operators, which ONNX Runtime runs if it has no
    kernel."""
    return op == "GroupNormalization" or any(step.in_ort.kernels > 1 for step in steps_of(op))


def is_bounding(op: str) -> bool:
    """True if the outputs are small, or not floats, for all inputs: a part of the graph that stays
    in fp32 for its range ends at such an operation. `op` is a standard operator or the name of an
    epilogue step."""
    own = EPILOGUES.get(op)
    steps = steps_of(op) if own is None else (own,)
    return op in _OTHERS_BOUNDING or any(step.bounding for step in steps)


def needs_epilogue(op: str) -> bool:
    """True for epilogue steps for which some releases of ONNX Runtime have no 16-bit kernel."""
    return any(not step.in_ort.all_types for step in steps_of(op))
