"""Every kernel family on a GPU against float64: activations, operands, casts, alignments, shapes,
pitches.

Build the kernels beforehand, on all cores: `python -m tests.gpu.build_kernels
build/test-kernels-sm90.so --arch 90`.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from onnxbolt.codegen.render import Instance, instance_name
from onnxbolt.dtypes import DType
from onnxbolt.families import Family, named
from tests.gpu.cases import ALL, ARCH, GEMMS, GemmShape, convolutions
from tests.gpu.device import KernelError, Library, Tensor
from tests.gpu.operands import access
from tests.gpu.problems import ConvProblem, GemmProblem, limit
from tests.gpu.reference import relative_error

pytestmark = pytest.mark.gpu

GEMM_KERNELS = [
    instance for instance in ALL if instance.config.family in (named("gemm_2x"), named("gemm_3x"))
]
CONV_KERNELS = [instance for instance in ALL if instance.config.family is named("conv_2x")]


def _check(
    library: Library, instance: Instance, problems: Sequence[GemmProblem | ConvProblem]
) -> None:
    kernel = library.kernel(instance)
    for problem in problems:
        kernel.check(problem.arguments)
        kernel.launch(problem.arguments)
        assert relative_error(problem.output.read(), problem.expected) <= limit(instance), (
            problem.expected.shape
        )


@pytest.mark.parametrize("instance", GEMM_KERNELS, ids=instance_name)
def test_gemm(library: Library, instance: Instance) -> None:
    _check(library, instance, [GemmProblem(library, instance, shape) for shape in GEMMS])


@pytest.mark.parametrize("instance", CONV_KERNELS, ids=instance_name)
def test_conv(library: Library, instance: Instance) -> None:
    _check(
        library,
        instance,
        [ConvProblem(library, instance, shape) for shape in convolutions(instance)],
    )


def _example(
    family: Family[Any], chain: tuple[str, ...] = ("Bias", "Add", "Relu"), dtype: DType = DType.F16
) -> Instance:
    """The first instance of a family that has this chain at full alignment."""
    found = (
        i
        for i in ALL
        if i.config.family is family
        and i.chain == chain
        and i.dtype is dtype
        and access(i.config)[0] == dtype.alignment
    )
    return next(found, None) or pytest.skip(f"{family.name} is not built for sm_{ARCH}")


def _problem(library: Library, instance: Instance) -> GemmProblem | ConvProblem:
    if instance.config.family is named("conv_2x"):
        return ConvProblem(library, instance, convolutions(instance)[0])
    return GemmProblem(library, instance, GEMMS[1])


FAMILIES = (named("gemm_2x"), named("gemm_3x"), named("conv_2x"))


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_capture_replays_the_same_bits(library: Library, family: Family[Any]) -> None:
    instance = _example(family)
    kernel, plain, captured = (
        library.kernel(instance),
        _problem(library, instance),
        _problem(library, instance),
    )
    kernel.launch(plain.arguments)
    kernel.launch(captured.arguments, captured=True)
    assert plain.output.read().tobytes() == captured.output.read().tobytes()


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_threads_share_a_kernel(library: Library, family: Family[Any]) -> None:
    instance = _example(family)
    kernel, problems = library.kernel(instance), [_problem(library, instance) for _ in range(8)]
    with concurrent.futures.ThreadPoolExecutor(len(problems)) as pool:
        for _ in range(10):
            list(pool.map(lambda problem: kernel.launch(problem.arguments), problems))
    for problem in problems:
        assert relative_error(problem.output.read(), problem.expected) <= limit(instance)


@pytest.mark.parametrize("swizzle", [1, 2, 4, 8])
def test_3x_swizzle_is_a_launch_choice(library: Library, swizzle: int) -> None:
    instance = _example(named("gemm_3x"))
    problem = GemmProblem(library, instance, GemmShape(1030, 131, 5))
    library.kernel(instance).launch(problem.arguments, swizzle=swizzle)
    assert relative_error(problem.output.read(), problem.expected) <= limit(instance)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("family", FAMILIES[:2], ids=repr)
def test_non_finite_inputs_reach_their_rows(
    library: Library, family: Family[Any], value: float
) -> None:
    instance = _example(family, ("Add",))
    problem = GemmProblem(library, instance, GemmShape(40, 5, 4))
    poisoned = np.zeros((40, 5 * access(instance.config)[1]), np.float16)
    poisoned[7, 3] = value
    tensor = Tensor(library, poisoned)
    problem.arguments.epilogue.tensors[0], problem.arguments.epilogue.tensor_pitch[0] = (
        tensor.pointer,
        tensor.pitch,
    )
    library.kernel(instance).launch(problem.arguments)
    actual = problem.output.read()
    assert np.array_equal(np.argwhere(~np.isfinite(actual)), [[7, 3]])
    assert np.array_equal(actual[7, 3], np.float16(value), equal_nan=True)


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_empty_problem_is_no_launch(library: Library, family: Family[Any]) -> None:
    instance = _example(family)
    problem = _problem(library, instance)
    setattr(problem.arguments, "n" if family is named("conv_2x") else "m", 0)
    kernel = library.kernel(instance)
    kernel.check(problem.arguments)
    kernel.launch(problem.arguments)
    assert (problem.output.read().view(np.uint16) == 0xFFFF).all()


REFUSALS = {
    "a": (2, "A, its pitch or k"),
    "lda": (1, "A, its pitch or k"),
    "k": (1, "A, its pitch or k"),
    "b": (2, "B, its pitch or k"),
    "ldb": (4, "B, its pitch or k"),
    "d": (8, "D, its pitch or n"),
    "ldd": (1, "D, its pitch or n"),
    "n": (1, "D, its pitch or n"),
}


@pytest.mark.parametrize("field", REFUSALS)
@pytest.mark.parametrize("family", FAMILIES[:2], ids=repr)
def test_gemm_refuses_misalignment(library: Library, family: Family[Any], field: str) -> None:
    instance = _example(family)
    problem = _problem(library, instance)
    offset, text = REFUSALS[field]
    setattr(problem.arguments, field, getattr(problem.arguments, field) + offset)
    with pytest.raises(KernelError, match=text):
        library.kernel(instance).check(problem.arguments)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("groups", 7, "multiples of groups"),
        ("c", 12, "align_a"),
        ("k", 9, "align_c"),
        ("y_pitch", 25, "align_c"),
        ("x_pitch", 2**24, "2.31"),
    ],
)
def test_conv_refuses(library: Library, field: str, value: int, text: str) -> None:
    instance = _example(named("conv_2x"))
    problem = _problem(library, instance)
    setattr(problem.arguments, field, value)
    with pytest.raises(KernelError, match=text):
        library.kernel(instance).check(problem.arguments)


def test_missing_operands_are_refused(library: Library) -> None:
    instance = _example(named("gemm_2x"))
    problem = _problem(library, instance)
    problem.arguments.epilogue.vectors[0] = None
    with pytest.raises(KernelError, match="vector is missing"):
        library.kernel(instance).check(problem.arguments)
