"""Depthwise convolutions of codes on a GPU: exact sums, zero points at the border of the image."""

from __future__ import annotations

import pytest

from onnxbolt.codegen.render import Instance, instance_name
from tests.gpu import quantized
from tests.gpu.cases import ALL, ConvShape
from tests.gpu.device import KernelError, Library
from tests.gpu.problems import limit
from tests.gpu.quantized_cases import DEPTHWISE

pytestmark = pytest.mark.gpu

KERNELS = [instance for instance in ALL if instance.config.family is DEPTHWISE]


@pytest.mark.parametrize("instance", KERNELS, ids=instance_name)
def test_every_instance(library: Library, instance: Instance) -> None:
    kernel, found = library.kernel(instance), quantized.by_channel(library, instance)
    assert found
    for problem in found:
        kernel.check(problem.arguments)
        kernel.launch(problem.arguments)
        answer = problem.output.read()
        if instance.out.is_code:
            assert problem.wrong(answer) == 0, problem.output.shape
        assert problem.error(answer) <= limit(instance), problem.output.shape


def test_results_are_the_same_bits_on_every_run(library: Library) -> None:
    instance = KERNELS[0]
    kernel, problem = library.kernel(instance), quantized.by_channel(library, instance)[0]
    answers = set()
    for run in range(20):
        kernel.launch(problem.arguments, captured=run % 2 == 1)
        answers.add(problem.output.read().tobytes())
    assert len(answers) == 1


def test_sums_that_fp32_does_not_hold_are_refused(library: Library) -> None:
    instance = next(k for k in KERNELS if k.config.named()["filter"] == (0, 0, 0))
    problem = quantized.depthwise(library, instance, ConvShape(1, 9, 8, 1, 1, 3, 5, (1, 2, 1, 2)))
    problem.arguments.r = problem.arguments.s = 23
    with pytest.raises(KernelError, match="more taps"):
        library.kernel(instance).check(problem.arguments)
