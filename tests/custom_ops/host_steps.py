"""The functors of custom_ops/epilogue/ compiled for the host, and what each of them stands for in
float64.

The headers are compiled as they are, but for PTX: each instruction becomes a call of the function
of host/intrinsics.h that is named after it. An instruction that has none there does not compile.
"""

from __future__ import annotations

import ctypes
import enum
import math
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np

from onnxbolt.codegen.artifacts import Unit, compile_units
from onnxbolt.codegen.nvcc import find_toolchain
from onnxbolt.codegen.resources import resource_dir
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import EPILOGUES, MEAN, ROTATE, codes

HOST = Path(__file__).with_name("host")
# each includes those before it
HEADERS = ("limits.h", "approximations.h", "pairs.h", "steps.h", "codes.h")
WHOLE = {MEAN, ROTATE}  # no functions of single values
CODES = tuple(step.name for step in codes.STEPS)
GELU_OF_CODES = "GeluErfOfCodes"  # GeluErf in kernels of codes
STEPS = tuple(  # those of values
    name for name, row in EPILOGUES.items() if row.functor and name not in (*WHOLE, *CODES)
)
PARAMS: dict[str, tuple[float, ...]] = {
    "LeakyRelu": (0.125,),
    "Clip": (-0.75, 6.0),
    "HardSigmoid": (0.2, 0.5),
    "Elu": (1.25,),
    "Dequantize": (0.03,),
    **{
        step.name: (0.07, 0.0 if step.name.endswith("E4M3") else 5.0) if step.given else ()
        for step in codes.STEPS
        if step is not codes.DEQUANTIZE
    },
}
ALL_FP16 = np.arange(2**16, dtype=np.uint16).view(np.float16)

_PTX = re.compile(r'asm\("([\w.]+)[^"]*"\s*:\s*([^;]*)\);')
_OPERAND = re.compile(r'"=?\w"\(([^()]+)\)')
_INCLUDE = re.compile(r'^#(include "epilogue/.*|pragma once)$', re.MULTILINE)


class Form(enum.IntEnum):
    """How a step is computed; the numbers are those of host/steps.cc."""

    APPLY = 0  # fp32
    APPROXIMATE = 1  # fp32, for a result of 16 bits
    FINISH_HALF = 2  # two values at once, rounded to fp16
    FINISH_BFLOAT = 3


class HostSteps:
    """The compiled functors."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.host_step.restype = self._library.host_reference.restype = ctypes.c_bool
        self._library.host_bounded.restype = ctypes.c_bool
        self._library.host_codes.argtypes = [
            *(ctypes.c_char, ctypes.c_uint32, ctypes.c_float, ctypes.c_void_p)
        ]

    def has(self, step: str, form: Form) -> bool:
        """True if the step has that form."""
        return bool(self._library.host_step(step.encode(), int(form), None, None, None, 0, None))

    def facts(self, step: str) -> tuple[str, int]:
        """The kind of the step's operand, as onnxbolt/epilogues/ names it, and the number of
        its parameters."""
        kind = self._library.host_operand(step.encode())
        return ("", "vector", "tensor")[kind], int(self._library.host_params(step.encode()))

    def reference_facts(self, step: str) -> tuple[str, int]:
        """The same, as the tuner's reference has them."""
        kind = self._library.host_reference_operand(step.encode())
        return ("", "vector", "tensor")[kind], int(
            self._library.host_reference_params(step.encode())
        )

    def reference(self, step: str, x: np.ndarray, operand: np.ndarray) -> np.ndarray:
        """The step as the tuner's reference computes it, in float64."""
        y = np.empty(len(x))
        params = np.array(PARAMS.get(step, (0.0,)), np.float32)
        arrays = (x.astype(np.float64), operand.astype(np.float64), params)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in arrays]
        assert self._library.host_reference(
            step.encode(), *pointers, len(x), ctypes.c_void_p(y.ctypes.data)
        ), f"no reference for {step}"
        return y

    def packed(self, step: str, x: np.ndarray, centred: bool = False) -> np.ndarray:
        """The codes that a chain's last step makes of values, four at a time; `centred`: those
        for a zero point of 0, as kernels make them that have found it."""
        y, params = np.empty(len(x), np.uint8), np.array(PARAMS[step], np.float32)
        if centred:
            params[1] = 0
        arrays = (x.astype(np.float32), params)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in arrays]
        assert self._library.host_pack(
            step.encode(), *pointers, centred, len(x), ctypes.c_void_p(y.ctypes.data)
        )
        return y

    def codes(self, dtype: DType, word: int, zero: float) -> np.ndarray:
        """The codes of a word minus their zero point, as kernels read them, in the order of its
        bytes."""
        y = np.empty(4, np.float32)
        letter = {DType.I8: b"b", DType.U8: b"B", DType.E4M3: b"f"}[dtype]
        self._library.host_codes(letter, word, zero, y.ctypes.data)
        return y

    def bounded(
        self,
        step: str,
        x: np.ndarray,
        operand: np.ndarray,
        errors: np.ndarray,
        rounding: float,
        own: float,
    ) -> np.ndarray:
        """Bounds of the step's errors, by the tuner's reference: of x's `errors`, and of what a
        kernel adds."""
        y, found = np.empty(len(x)), errors.astype(np.float64)
        params = np.array(PARAMS.get(step, (0.0,)), np.float32)
        arrays = (x.astype(np.float64), operand.astype(np.float64), params)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in arrays]
        assert self._library.host_bounded(
            step.encode(),
            *pointers,
            ctypes.c_double(rounding),
            ctypes.c_double(own),
            len(x),
            ctypes.c_void_p(y.ctypes.data),
            ctypes.c_void_p(found.ctypes.data),
        )
        return found

    def run(
        self,
        step: str,
        form: Form,
        x: np.ndarray,
        operand: np.ndarray | None = None,
        shift: int = 0,
    ) -> np.ndarray:
        """The step of an even number of float32 values, as float64. `shift` (-1, 0 or 1): at
        which end of its error the special-function unit answers."""
        assert x.dtype == np.float32
        assert len(x) % 2 == 0
        y = np.empty(len(x), np.float32 if form in (Form.APPLY, Form.APPROXIMATE) else np.uint16)
        operands = np.zeros_like(x) if operand is None else operand.astype(np.float32)
        params = np.array(PARAMS.get(step, (0.0,)), np.float32)
        self._library.host_shift(shift)
        done = self._library.host_step(
            step.encode(),
            int(form),
            *(ctypes.c_void_p(a.ctypes.data) for a in (x, operands, params)),
            len(x),
            ctypes.c_void_p(y.ctypes.data),
        )
        assert done, f"{step} has no {form.name}"
        if form is Form.FINISH_HALF:
            return y.view(np.float16).astype(np.float64)
        if form is Form.FINISH_BFLOAT:
            return (y.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return y.astype(np.float64)


def transcribe(header: str) -> str:
    """The header's text with PTX as calls, for the architectures from sm_90 on."""

    def call(found: re.Match[str]) -> str:
        return f"ptx_{found[1].replace('.', '_')}({', '.join(_OPERAND.findall(found[2]))});"

    text = _INCLUDE.sub("", _PTX.sub(call, header)).replace("__CUDA_ARCH__", "900")
    assert "asm(" not in text, "an instruction is written in a form that this test cannot read"
    return text


def build(directory: Path) -> HostSteps:
    """Compile the functors (cached) into a library in `directory`."""
    root = resource_dir("custom_ops") / "epilogue"
    headers = "".join(transcribe((root / name).read_text()) for name in HEADERS)
    functors = [*(EPILOGUES[step].functor for step in (*STEPS, *CODES)), GELU_OF_CODES]
    names = " ".join(f"X({functor})" for functor in functors)
    text = (HOST / "steps.cc").read_text()
    for line, replaced in (
        ('#include "intrinsics.h"', (HOST / "intrinsics.h").read_text()),
        (
            "// here come the headers of custom_ops/epilogue/",
            headers + f"\n#define STEPS(X) {names}",
        ),
    ):
        assert line in text
        text = text.replace(line, replaced)
    toolchain = find_toolchain()
    (compiled,) = compile_units([Unit("steps.cc", text)], toolchain)
    library = directory / "steps.so"
    subprocess.run(
        [
            str(toolchain.nvcc),
            "-shared",
            "-nodlink",
            "-cudart=none",
            str(compiled),
            "-o",
            str(library),
        ],
        check=True,
    )
    return HostSteps(library)


def _normal(x: np.ndarray) -> np.ndarray:
    """The normal distribution, to float64's own error also where it is small."""
    return np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in x])


def _logistic(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -x))


def _parameters(step: str) -> tuple[float, ...]:
    return tuple(float(np.float32(value)) for value in PARAMS[step])  # as the kernel gets them


# the ONNX operators' definitions; x, operand -> y
EXACT: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "Bias": lambda x, v: x + v,
    "Scale": lambda x, v: x * v,
    "PRelu": lambda x, v: np.where(x < 0, x * v, x),
    "Add": lambda x, v: x + v,
    "Mul": lambda x, v: x * v,
    "Gate": lambda x, v: x * v,
    "GateBias": lambda x, v: x * v,
    "Relu": lambda x, _: np.maximum(x, 0),
    "LeakyRelu": lambda x, _: np.where(x < 0, x * _parameters("LeakyRelu")[0], x),
    "Clip": lambda x, _: np.clip(x, _parameters("Clip")[0], _parameters("Clip")[1]),
    "Sigmoid": lambda x, _: _logistic(x),
    "Tanh": lambda x, _: np.tanh(x),
    "GeluErf": lambda x, _: x * _normal(x),
    "GeluTanh": lambda x, _: x * _logistic(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)),
    "Silu": lambda x, _: x * _logistic(x),
    "QuickGelu": lambda x, _: x * _logistic(1.702 * x),
    "HardSwish": lambda x, _: x * np.clip(x / 6 + 0.5, 0, 1),
    "HardSigmoid": lambda x, _: np.clip(
        _parameters("HardSigmoid")[0] * x + _parameters("HardSigmoid")[1], 0, 1
    ),
    "Softplus": lambda x, _: np.logaddexp(0, x),
    "Elu": lambda x, _: np.where(x < 0, _parameters("Elu")[0] * np.expm1(np.minimum(x, 0)), x),
    "Mish": lambda x, _: x * np.tanh(np.logaddexp(0, x)),
}


def exact(step: str, x: np.ndarray, operand: np.ndarray | None = None) -> np.ndarray:
    """The step in float64."""
    with np.errstate(all="ignore"):
        return EXACT[step](
            x.astype(np.float64),
            np.zeros(len(x)) if operand is None else operand.astype(np.float64),
        )
