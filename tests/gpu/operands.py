"""Parts of the problems of all families: an epilogue's operands, and a problem in the form that the
tests run."""

from __future__ import annotations

import ctypes
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxbolt.codegen.render import Instance, instance_name
from onnxbolt.epilogues import EPILOGUES, rotates
from onnxbolt.families import KernelConfig
from onnxbolt.families.row import SLOTS
from tests.gpu.cases import PARAMS
from tests.gpu.device import Epilogue, Library, Rotation, Tensor
from tests.gpu.reference import drawn


class Operands:
    """An epilogue's operands on the device and on the host; keeps the device's alive."""

    def __init__(
        self,
        library: Library,
        instance: Instance,
        shape: tuple[int, ...],
        gap: int,
        rng: np.random.Generator,
    ) -> None:
        kinds = [EPILOGUES[step].operand for step in instance.chain]
        self.vectors = [
            rng.normal(0.4, 0.7, shape[-1:]).astype(np.float32)
            for _ in range(kinds.count("vector"))
        ]
        self.tensors = [drawn(rng, shape, instance.dtype) for _ in range(kinds.count("tensor"))]
        self._device = [Tensor(library, vector) for vector in self.vectors] + [
            Tensor(library, tensor, gap) for tensor in self.tensors
        ]
        self.arguments = Epilogue()
        vectors, tensors = self._device[: len(self.vectors)], self._device[len(self.vectors) :]
        self.arguments.vectors[: len(vectors)] = [vector.pointer for vector in vectors]
        self.arguments.tensors[: len(tensors)] = [tensor.pointer for tensor in tensors]
        self.arguments.tensor_pitch[: len(tensors)] = [tensor.pitch for tensor in tensors]
        self.rotation: np.ndarray | None = None
        if rotates(instance.chain):
            self.rotation = self._rotation(library, instance, shape, rng)
        params = parameters(instance)
        self.arguments.params[: len(params)] = params

    def _rotation(
        self,
        library: Library,
        instance: Instance,
        shape: tuple[int, ...],
        rng: np.random.Generator,
    ) -> np.ndarray:
        """cos and sin for each pair of columns of each row [m, n]; most columns are rotated, by a
        table that repeats, and whose first row is another one."""
        m, n = shape
        width = 8 if n % 16 else 16
        rows, columns = m // 3 + 1, max(n * 2 // 3 // width, 1) * width
        table = rng.normal(0, 1, (rows, width)).astype(instance.dtype.numpy)
        stored, first = Tensor(library, table), rows // 2
        self._device.append(stored)
        self.arguments.rotation = Rotation(stored.pointer, rows, width, columns, first)
        turned = np.tile(table[(first + np.arange(m)) % rows], (1, columns // width))
        kept = np.tile([1.0, 0.0], (m, (n - columns) // 2))
        return np.concatenate([turned.astype(np.float64), kept], axis=1)


@dataclass
class Problem:
    """`arguments` for the kernel, its `output`, and what that has to be, where that is checked
    here; `kept` are the tensors that the arguments point to."""

    arguments: ctypes.Structure
    output: Tensor
    expected: np.ndarray | None
    kept: tuple[Any, ...] = ()


def parameters(instance: Instance) -> list[float]:
    """The parameters of all steps, in their order."""
    return [number for step in instance.chain for number in PARAMS.get(step, ())]


def access(config: KernelConfig) -> tuple[int, int]:
    """Elements in one access of the inputs and of the output, whatever the family calls them."""
    held = dict(zip(SLOTS, config.row(), strict=True))
    return held["align_a"], held["align_c"]


def random_of(instance: Instance, shape: object) -> np.random.Generator:
    """Numbers that differ for instances and shapes that differ."""
    return np.random.default_rng(zlib.crc32(repr((instance_name(instance), shape)).encode()))
