"""Two products whose first result is stored as well, or has residuals, on a GPU against float64:
both outputs, tails of rows, k and columns."""

from __future__ import annotations

import pytest

from onnxbolt.codegen.render import Instance, instance_name
from onnxbolt.epilogues import STORE
from onnxbolt.families import named
from onnxbolt.tolerances import KERNEL
from tests.gpu.cases import ALL
from tests.gpu.device import Library
from tests.gpu.problems import limit
from tests.gpu.reference import relative_error
from tests.gpu.refusals import assert_refused
from tests.gpu.stored_chains import SHAPES, stored_problem

pytestmark = pytest.mark.gpu
KERNELS = [instance for instance in ALL if instance.config.family is named("b2b_stored_sm90")]
STORING, OTHERS = (
    [instance for instance in KERNELS if (STORE in instance.chain) is stores]
    for stores in (True, False)
)


@pytest.mark.parametrize("instance", KERNELS, ids=instance_name)
def test_both_results(library: Library, instance: Instance) -> None:
    kernel = library.kernel(instance)
    for shape in SHAPES:
        problem = stored_problem(library, instance, shape)
        for captured in (False, True):
            kernel.launch(problem.arguments, captured)
            assert problem.expected is not None
            assert relative_error(problem.output.read(), problem.expected) <= limit(instance), shape
            if problem.stored is not None:
                assert (
                    relative_error(problem.stored.read(), problem.expected_stored)
                    <= KERNEL[instance.dtype]
                ), shape


def test_what_the_kernel_is_not_for_is_refused(library: Library) -> None:
    kernel, problem = library.kernel(STORING[0]), stored_problem(library, STORING[0], (64, 0, 0, 0))
    cases = (
        ("layers", 3, "two layers"),
        ("stored", None, "no place"),
        ("stored", problem.stored.pointer + 2, "the stored rows"),
        ("lda", 3, "A's rows"),
        ("ldd", 3, "D's rows"),
        ("k", 1 << 20, "fewer columns"),
        ("m", 2**31 - 1, "close to 2.31"),
    )
    assert_refused(kernel, problem.arguments, cases)


def test_a_kernel_that_stores_nothing_between_refuses_to(library: Library) -> None:
    kernel, problem = library.kernel(OTHERS[0]), stored_problem(library, OTHERS[0], (64, 0, 0, 0))
    assert_refused(
        kernel,
        problem.arguments,
        (("stored", problem.output.pointer, "does not store it"), ("layers", 3, "two layers")),
    )
