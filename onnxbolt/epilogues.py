"""The one table of epilogue steps: ONNX body, C++ functor, numpy reference.

A fused node's epilogue is a *chain* of steps applied in fp32 to the accumulator of a GEMM or
convolution (Bolt, section 3.1.1: element-wise operators, column broadcasts, data type conversion).
A step may take an operand: a *vector* along the output channels (float32), a *tensor* of the
output's shape (the node's element type) or a further product's *weight*; operands are the node's
inputs 2, 3, .. in the order of the steps. Parameters are compile-time facts of the node's function
body and run-time numbers of the kernel (`epilogue_params`, in the order of the steps).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from onnxbolt.dtypes import DType

Array = np.ndarray
# emit(op, inputs, **attributes) -> output name; emit("Const", value) -> name of a scalar
Emit = Callable[..., str]


@dataclass(frozen=True)
class Epilogue:
    """One row: how a step reads in ONNX, in C++ and in numpy."""

    name: str
    operand: str  # "", "vector", "tensor" or "weight"
    params: tuple[str, ...]
    functor: str  # C++ type in namespace onnxbolt::epilogue, custom_ops/epilogue/steps.h
    # (emit, opset, x, operand, params) -> y
    body: Callable[[Emit, int, str, str, tuple[float, ...]], str]
    reference: Callable[..., Array]  # (x, operand or None, *params) in the input's precision
    cost: float  # fp32 instructions per element, for the cost model


@dataclass(frozen=True)
class Step:
    """One use of a row of the table."""

    name: str
    params: tuple[float, ...] = ()

    @property
    def row(self) -> Epilogue:
        return EPILOGUES[self.name]


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype)


def _unary(op: str, *names: str) -> Callable[[Emit, int, str, str, tuple[float, ...]], str]:
    """A body of one standard op whose attributes are the step's parameters."""
    return lambda emit, opset, x, operand, params: emit(
        op, [x], **dict(zip(names, params, strict=True))
    )


def _binary(op: str) -> Callable[[Emit, int, str, str, tuple[float, ...]], str]:
    return lambda emit, opset, x, operand, params: emit(op, [x, operand])


def _clip(emit: Emit, opset: int, x: str, operand: str, params: tuple[float, ...]) -> str:
    return emit("Clip", [x, emit("Const", params[0]), emit("Const", params[1])])


def _gelu_erf(emit: Emit, opset: int, x: str, operand: str, params: tuple[float, ...]) -> str:
    # written as PyTorch exports it below opset 20, which is the form that ONNX Runtime's own
    # fusions look for
    inner = emit(
        "Add", [emit("Erf", [emit("Div", [x, emit("Const", math.sqrt(2.0))])]), emit("Const", 1.0)]
    )
    return emit("Mul", [emit("Mul", [x, inner]), emit("Const", 0.5)])


def _gelu_tanh(emit: Emit, opset: int, x: str, operand: str, params: tuple[float, ...]) -> str:
    cubed = emit("Mul", [emit("Mul", [x, x]), x])
    inner = emit("Add", [x, emit("Mul", [cubed, emit("Const", 0.044715)])])
    tanh = emit("Tanh", [emit("Mul", [inner, emit("Const", math.sqrt(2.0 / math.pi))])])
    return emit(
        "Mul", [emit("Mul", [x, emit("Add", [tanh, emit("Const", 1.0)])]), emit("Const", 0.5)]
    )


def _silu(emit: Emit, opset: int, x: str, operand: str, params: tuple[float, ...]) -> str:
    return emit("Mul", [x, emit("Sigmoid", [x])])


def _hard_swish(emit: Emit, opset: int, x: str, operand: str, params: tuple[float, ...]) -> str:
    return emit("Mul", [x, emit("HardSigmoid", [x], alpha=1.0 / 6.0, beta=0.5)])


def _mish(emit: Emit, opset: int, x: str, operand: str, params: tuple[float, ...]) -> str:
    return emit("Mul", [x, emit("Tanh", [emit("Softplus", [x])])])


def _cast(dtype: DType) -> Callable[[Emit, int, str, str, tuple[float, ...]], str]:
    return lambda emit, opset, x, operand, params: emit("Cast", [x], to=dtype.onnx)


def _gelu_tanh_reference(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def _product(emit: Emit, opset: int, x: str, operand: str, params: tuple[float, ...]) -> str:
    return emit("MatMul", [x, emit("Transpose", [operand], perm=[1, 0])])


_ROWS = (
    Epilogue("Bias", "vector", (), "Bias", _binary("Add"), lambda x, v: x + v, 1),
    Epilogue("Scale", "vector", (), "Scale", _binary("Mul"), lambda x, v: x * v, 1),
    Epilogue(
        "PRelu", "vector", (), "PRelu", _binary("PRelu"), lambda x, v: np.where(x > 0, x, x * v), 2
    ),
    Epilogue("Add", "tensor", (), "Add", _binary("Add"), lambda x, t: x + t, 1),
    Epilogue("Mul", "tensor", (), "Mul", _binary("Mul"), lambda x, t: x * t, 1),
    Epilogue("Relu", "", (), "Relu", _unary("Relu"), lambda x, _: np.maximum(x, 0), 1),
    Epilogue(
        "LeakyRelu",
        "",
        ("alpha",),
        "LeakyRelu",
        _unary("LeakyRelu", "alpha"),
        lambda x, _, a: np.where(x > 0, x, a * x),
        2,
    ),
    Epilogue("Clip", "", ("min", "max"), "Clip", _clip, lambda x, _, lo, hi: np.clip(x, lo, hi), 2),
    Epilogue("Sigmoid", "", (), "Sigmoid", _unary("Sigmoid"), lambda x, _: _sigmoid(x), 6),
    Epilogue("Tanh", "", (), "Tanh", _unary("Tanh"), lambda x, _: np.tanh(x), 6),
    Epilogue(
        "GeluErf",
        "",
        (),
        "GeluErf",
        _gelu_erf,
        lambda x, _: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
        12,
    ),
    Epilogue("GeluTanh", "", (), "GeluTanh", _gelu_tanh, lambda x, _: _gelu_tanh_reference(x), 12),
    Epilogue("Silu", "", (), "Silu", _silu, lambda x, _: x * _sigmoid(x), 7),
    Epilogue(
        "HardSwish",
        "",
        (),
        "HardSwish",
        _hard_swish,
        lambda x, _: x * np.clip(x / 6 + 0.5, 0, 1),
        4,
    ),
    Epilogue(
        "HardSigmoid",
        "",
        ("alpha", "beta"),
        "HardSigmoid",
        _unary("HardSigmoid", "alpha", "beta"),
        lambda x, _, a, b: np.clip(a * x + b, 0, 1),
        3,
    ),
    Epilogue("Softplus", "", (), "Softplus", _unary("Softplus"), lambda x, _: _softplus(x), 12),
    Epilogue(
        "Elu",
        "",
        ("alpha",),
        "Elu",
        _unary("Elu", "alpha"),
        lambda x, _, a: np.where(x > 0, x, a * np.expm1(np.minimum(x, 0))),
        6,
    ),
    Epilogue("Mish", "", (), "Mish", _mish, lambda x, _: x * np.tanh(_softplus(x)), 10),
    # a further product (Bolt, section 3.1.1), by a weight [N, K]; behind a convolution a 1x1 one's
    # [N, 1, 1, K]
    Epilogue("Gemm", "weight", (), "", _product, lambda x, w: x @ w.T, 0),
    # in front of a further product: the result so far is the node's second output, too
    Epilogue("Store", "", (), "", _unary("Identity"), lambda x, _: x, 0),
    # the mean over each image's pixels behind a convolution: a global average pooling; but for a
    # conversion the last step
    Epilogue(
        "Mean",
        "",
        (),
        "Mean",
        _unary("GlobalAveragePool"),
        lambda x, _: x.mean((1, 2), keepdims=True),
        1,
    ),
    # a conversion of the result, always the last step; the kernel's output element follows from it
    Epilogue("CastF32", "", (), "", _cast(DType.F32), lambda x, _: x, 0),
    Epilogue("CastF16", "", (), "", _cast(DType.F16), lambda x, _: x, 0),
    Epilogue("CastBF16", "", (), "", _cast(DType.BF16), lambda x, _: x, 0),
)

EPILOGUES = {row.name: row for row in _ROWS}
PRODUCT, STORE, MEAN = "Gemm", "Store", "Mean"
CASTS = {DType.F32: "CastF32", DType.F16: "CastF16", DType.BF16: "CastBF16"}
# custom_ops/runtime/kernel.h: EpilogueArguments, ChainArguments
MAX_VECTORS, MAX_TENSORS, MAX_PARAMS, MAX_LAYERS = 4, 2, 8, 4
# steps of an epilogue: a compiler takes long for more, as does a reader of the op type's name
MAX_STEPS = 64


@functools.lru_cache(maxsize=4096)
def layers(chain: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The steps that each layer computes: ("Bias", "Relu", "Store", "Gemm", "Bias") -> (("Bias",
    "Relu"), ("Bias",))."""
    found: list[tuple[str, ...]] = [()]
    for step in chain:
        if step == PRODUCT:
            found.append(())
        elif step != STORE:
            found[-1] += (step,)
    return tuple(found)


def has_inner_residual(chain: tuple[str, ...]) -> bool:
    """Whether a layer before the last reads a tensor."""
    *inner, _ = layers(chain)
    return any(EPILOGUES[step].operand == "tensor" for layer in inner for step in layer)


def fits_several(chain: tuple[str, ...]) -> bool:
    """Whether kernels that keep inner results to themselves take these steps: parameters of all
    layers share one argument block, residuals stand behind the last layer alone, and no inner
    result is stored (kernels/chain_stored.py does both).
    """
    return (
        not has_inner_residual(chain)
        and STORE not in chain
        and sum(len(EPILOGUES[step].params) for step in chain) <= MAX_PARAMS
    )
