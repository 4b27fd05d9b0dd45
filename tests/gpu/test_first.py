"""First convolutions on a GPU: right on every shape, infinities stay where they belong, and what
is refused."""

from __future__ import annotations

import numpy as np
import pytest

from onnxbolt.codegen.render import Instance, instance_name
from onnxbolt.families.stem_sm90 import StemSm90Config
from tests.gpu.cases import ALL
from tests.gpu.device import KernelError, Library, Tensor
from tests.gpu.problems import FIRST, first_problem, limit, problems
from tests.gpu.reference import relative_error

pytestmark = pytest.mark.gpu
KERNELS = [instance for instance in ALL if isinstance(instance.config, StemSm90Config)]


@pytest.mark.parametrize("instance", KERNELS, ids=instance_name)
def test_first_convolution(library: Library, instance: Instance) -> None:
    kernel = library.kernel(instance)
    for problem in problems(library, instance):
        kernel.launch(problem.arguments)
        assert relative_error(problem.output.read(), problem.expected) <= limit(instance), (
            problem.expected.shape
        )


@pytest.mark.parametrize("instance", KERNELS, ids=instance_name)
def test_an_infinity_reaches_its_windows_alone(library: Library, instance: Instance) -> None:
    """If the product's depth is rounded up, neighbouring pixels are multiplied by weights of
    zero."""
    config = instance.config
    assert isinstance(config, StemSm90Config)
    (r, s, c), (stride_h, stride_w) = config.filter, config.strides
    problem = first_problem(library, instance, FIRST[3])
    x = np.zeros((1, c, 64, 64), np.float32)
    x[0, 0, 30, 31] = np.inf
    poisoned = Tensor(library, x)
    problem.arguments.x = poisoned.pointer
    library.kernel(instance).launch(problem.arguments)
    rows = [p for p in range(problem.arguments.p) if p * stride_h - 3 <= 30 < p * stride_h - 3 + r]
    columns = [
        q for q in range(problem.arguments.q) if q * stride_w - 3 <= 31 < q * stride_w - 3 + s
    ]
    assert problem.expected is not None
    outside = np.ones(problem.expected.shape[1:3], bool)
    outside[np.ix_(rows, columns)] = False
    assert np.isfinite(problem.output.read()[0][outside].astype(np.float32)).all()


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("x_nchw", 0, "reads NCHW"),
        ("groups", 3, "no groups"),
        ("dilation_w", 2, "no dilation"),
        ("r", 2, "another filter"),
        ("stride_h", 3, "another filter or stride"),
        ("k", 60, "16 bytes"),
        ("h", 2**30, "2.31"),
    ],
)
def test_refusals(library: Library, field: str, value: int, text: str) -> None:
    problem = first_problem(library, KERNELS[0], FIRST[0])
    setattr(problem.arguments, field, value)
    with pytest.raises(KernelError, match=text):
        library.kernel(KERNELS[0]).check(problem.arguments)
