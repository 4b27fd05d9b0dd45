"""Several layers in one kernel on a GPU against float64: one row, odd images, tails of rows, k
and columns, residuals, rows that TMA cannot write."""

from __future__ import annotations

import pytest

from onnxbolt.codegen.render import Instance, instance_name
from onnxbolt.families import named
from tests.gpu.cases import ALL
from tests.gpu.chain_problems import chain_problem
from tests.gpu.device import Library
from tests.gpu.problems import limit, problems
from tests.gpu.reference import relative_error
from tests.gpu.refusals import assert_refused

pytestmark = pytest.mark.gpu
FAMILIES = (
    named("b2b_gemm_sm90"),
    named("b2b_gemm_small"),
    named("b2b_gemm_2x"),
    named("b2b_conv_2x"),
    named("b2b_conv_sm90"),
    named("b2b_halo_sm90"),
    named("b2b_stem_sm90"),
    named("b2b_gemm_wide_sm90"),
)
KERNELS = [instance for instance in ALL if instance.config.family in FAMILIES]


@pytest.mark.parametrize("instance", KERNELS, ids=instance_name)
def test_chain(library: Library, instance: Instance) -> None:
    kernel = library.kernel(instance)
    for problem in problems(library, instance):
        for captured in (False, True):
            kernel.launch(problem.arguments, captured)
            assert relative_error(problem.output.read(), problem.expected) <= limit(instance), (
                problem.expected.shape
            )


def test_what_the_kernel_is_not_for_is_refused(library: Library) -> None:
    instance = next(kernel for kernel in KERNELS if kernel.config.family is named("b2b_gemm_sm90"))
    kernel, problem = library.kernel(instance), chain_problem(library, instance, (64, 0, 0, 0))
    cases = (
        ("layers", 1, "number of layers"),
        ("lda", 3, "multiples of 16 bytes"),
        ("k", 8, "another k"),
        ("m", 2**31 - 1, "close to 2.31"),
    )
    assert_refused(kernel, problem.arguments, cases)
