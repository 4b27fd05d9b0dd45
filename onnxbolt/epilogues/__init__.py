"""Epilogue steps: one entry for each kind, from which all other lists derive.

A fused node's epilogue is a sequence of steps applied in fp32 to the accumulator of a GEMM or
convolution (Bolt, section 3.1.1: element-wise operators, column broadcasts, data type conversion).
A step may take an operand: a *vector* along the output channels (float32), a *tensor* of the
output's shape (the node's element type), a further product's *weight*, or the table of a
*rotation*; operands are the node's inputs 2, 3, .. in the order of the steps. Parameters are
compile-time facts of the node's function body and run-time numbers of the kernel
(`epilogue_params`, in the order of the steps).

An entry (step.py) has the nodes (patterns.py) and formulas (formula.py) that a step is recognized
by, its ONNX body, its C++ functor, its numpy reference, its errors and its costs. registry.py lists
the entries and takes those of extensions.
"""

from __future__ import annotations

from onnxbolt.epilogues.layers import (
    MAX_LAYERS,
    MAX_PARAMS,
    MAX_STEPS,
    MAX_TENSORS,
    MAX_VECTORS,
    epilogue_bytes,
    fits_several,
    gates,
    has_inner_residual,
    layers,
    rotates,
    tensor_operands,
    values_of,
)
from onnxbolt.epilogues.registry import (
    ADD,
    ADD_CODES,
    ADD_VALUES,
    BIAS,
    CASTS,
    DECODE,
    DEQUANTIZE,
    EPILOGUES,
    GATE,
    GATE_BIAS,
    MEAN,
    MUL,
    MUL_CODES,
    PRODUCT,
    QUANTIZE,
    REQUANTIZE,
    ROTATE,
    SCALE,
    STORE,
    STORE_VALUES,
    Step,
    registered,
    steps_of,
)
from onnxbolt.epilogues.step import EpilogueStep

__all__ = [
    "ADD",
    "ADD_CODES",
    "ADD_VALUES",
    "BIAS",
    "CASTS",
    "DECODE",
    "DEQUANTIZE",
    "EPILOGUES",
    "GATE",
    "GATE_BIAS",
    "MAX_LAYERS",
    "MAX_PARAMS",
    "MAX_STEPS",
    "MAX_TENSORS",
    "MAX_VECTORS",
    "MEAN",
    "MUL",
    "MUL_CODES",
    "PRODUCT",
    "QUANTIZE",
    "REQUANTIZE",
    "ROTATE",
    "SCALE",
    "STORE",
    "STORE_VALUES",
    "EpilogueStep",
    "Step",
    "epilogue_bytes",
    "fits_several",
    "gates",
    "has_inner_residual",
    "layers",
    "registered",
    "rotates",
    "steps_of",
    "tensor_operands",
    "values_of",
]
