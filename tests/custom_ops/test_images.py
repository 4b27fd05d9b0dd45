"""Kernels that move or sample pixels of images, on the host, on the problems of the GPU tests."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from onnxbolt.codegen.render import Instance, instance_name
from onnxbolt.dtypes import DType
from onnxbolt.families.grid_sample import GridSampleConfig
from onnxbolt.families.pixel_shuffle import PixelShuffleConfig
from onnxbolt.families.resize import ResizeConfig
from tests.custom_ops.host_kernels import compile_kernels
from tests.custom_ops.test_norm import HostMemory
from tests.gpu import resized, sampled, shuffled
from tests.gpu.cases import images
from tests.gpu.device import Library
from tests.gpu.operands import Problem
from tests.gpu.reference import LIMITS, relative_error

# makes a problem of an instance and a shape, and the shapes with and without an epilogue
Family = tuple[Callable[[Library, Instance, Any], Problem], tuple[Any, ...], tuple[Any, ...]]
FAMILIES: dict[type, Family] = {
    ResizeConfig: (resized.resize_problem, resized.BROADCAST, resized.SHAPES),
    PixelShuffleConfig: (shuffled.shuffle_problem, shuffled.SHAPES, shuffled.SHAPES),
    GridSampleConfig: (sampled.sample_problem, (), sampled.SHAPES),
}
INSTANCES = [
    instance
    for arch, dtype in ((90, DType.F16), (90, DType.F32), (80, DType.BF16))
    for instance in images(arch, (dtype,))
]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path: Path = compile_kernels("images.cc", INSTANCES, tmp_path_factory.mktemp("images"))
    library = ctypes.CDLL(str(path))
    library.host_run.restype = ctypes.c_char_p
    return library


@pytest.mark.parametrize("instance", INSTANCES, ids=instance_name)
def test_answers_are_those_of_float64(kernels: ctypes.CDLL, instance: Instance) -> None:
    make, behind, alone = FAMILIES[type(instance.config)]
    for shape in behind if instance.chain else alone:
        problem = make(cast(Library, HostMemory()), instance, shape)
        error = kernels.host_run(INSTANCES.index(instance), ctypes.byref(problem.arguments))
        assert error is None
        assert problem.expected is not None
        actual = problem.output.read()
        assert relative_error(actual, problem.expected) <= LIMITS[instance.dtype], shape
