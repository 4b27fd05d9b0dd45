"""Elementwise chains by themselves on a GPU against float64: operands, widths of access,
pitches, rows that a thread does not reach."""

from __future__ import annotations

import numpy as np
import pytest

from onnxbolt.codegen.render import Instance, instance_name
from onnxbolt.dtypes import DType
from onnxbolt.families import named
from tests.gpu.cases import ALL
from tests.gpu.device import Elementwise, KernelError, Library, Tensor
from tests.gpu.operands import Operands
from tests.gpu.problems import elementwise_problem
from tests.gpu.reference import LIMITS, assert_codes, epilogue, relative_error

pytestmark = pytest.mark.gpu

# rows, channels, elements between rows
SHAPES = (
    (1, 1, 0),
    (3, 8, 0),
    (1000, 24, 8),
    (777, 10, 2),
    (513, 7, 1),
    (4, 40000, 0),
    (70001, 64, 0),
    (2, 300008, 0),
)
_ALL = [instance for instance in ALL if instance.config.family is named("elementwise")]
KERNELS = [instance for instance in _ALL if not instance.out.is_code]
OF_CODES = [instance for instance in _ALL if instance.out.is_code]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("instance", KERNELS, ids=instance_name)
def test_elementwise(library: Library, instance: Instance, shape: tuple[int, int, int]) -> None:
    problem = elementwise_problem(library, instance, shape)
    kernel = library.kernel(instance)
    kernel.check(problem.arguments)
    for captured in (False, True):
        kernel.launch(problem.arguments, captured)
        assert problem.expected is not None
        assert relative_error(problem.output.read(), problem.expected) <= LIMITS[instance.out]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("instance", OF_CODES, ids=instance_name)
def test_codes(library: Library, instance: Instance, shape: tuple[int, int, int]) -> None:
    """Few differ, near the middle of two: by one step of the result, or of what is rounded
    within."""
    problem = elementwise_problem(library, instance, shape)
    kernel, expected = library.kernel(instance), problem.expected
    assert expected is not None
    kernel.check(problem.arguments)
    kernel.launch(problem.arguments)
    assert_codes(problem.output.read(), expected, instance.out)


def test_a_view_that_begins_anywhere_is_read_in_narrower_accesses(library: Library) -> None:
    instance = next(
        i for i in KERNELS if i.chain == ("Scale", "Bias", "Relu") and i.dtype is DType.F16
    )
    x, rng = (
        np.random.default_rng(0).normal(0, 1, (1, 8 * 64 + 1)).astype(np.float16),
        np.random.default_rng(1),
    )
    operands = Operands(library, instance, (64, 8), 0, rng)
    source, output = Tensor(library, x), Tensor(library, np.zeros((64, 8), np.float16), empty=True)
    library.kernel(instance).launch(
        Elementwise(64, 8, source.pointer + 2, output.pointer, 8, 8, operands.arguments)
    )
    expected = epilogue(
        x[0, 1:].reshape(64, 8).astype(np.float64),
        instance.chain,
        operands.vectors,
        operands.tensors,
    )
    assert relative_error(output.read(), expected) <= LIMITS[DType.F16]


def test_nothing_to_do_is_no_launch_and_a_missing_operand_is_refused(library: Library) -> None:
    instance = KERNELS[0]
    kernel, arguments = library.kernel(instance), Elementwise(0, 8, None, None, 8, 8)
    with pytest.raises(KernelError, match="vector is missing"):
        kernel.check(arguments)
    kernel.launch(arguments)
