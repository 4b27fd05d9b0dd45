"""GEMMs that hand statistics of rows to one another on a GPU against float64: each chain, tails,
residuals, the same bits on every run, and a product behind the one that wrote what it reads."""

from __future__ import annotations

import numpy as np
import pytest

from onnxbolt.codegen.render import Instance, instance_name
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import EPILOGUES, FOLDED_NORMS, MOMENTS
from onnxbolt.problems.gemm_moments import PART
from tests.gpu import gemm_moments
from tests.gpu.cases import ALL
from tests.gpu.device import KernelError, Library
from tests.gpu.gemm_moments import MomentsProblem, moments_of
from tests.gpu.problems import problems
from tests.gpu.reference import LIMITS, epilogue, relative_error

pytestmark = pytest.mark.gpu

KERNELS = [i for i in ALL if any(EPILOGUES[step].statistics for step in i.chain)]
READING = [i for i in KERNELS if i.chain[0] in FOLDED_NORMS]
WRITING = [i for i in KERNELS if i.chain[-1] == MOMENTS]
# weights of any depth fit shared memory
STREAMING = [i for i in KERNELS if not i.config.resident]  # type: ignore[attr-defined]
RUNS = 100
# seven tiles or more for each block of an H200, each of one k-block
MANY_TILES = 20_003, 24, 1, 0


def _check(instance: Instance, problem: MomentsProblem) -> None:
    """Statistics are those of the values as they are stored."""
    assert problem.expected is not None
    found = problem.output.read()
    assert relative_error(found, problem.expected) <= LIMITS[instance.dtype]
    if problem.moments is not None:
        means, squares = np.moveaxis(problem.moments.read().astype(np.float64), -1, 0)
        exact = np.moveaxis(moments_of(found), -1, 0)
        assert np.allclose(means, exact[0], rtol=1e-5, atol=1e-5)
        assert np.allclose(squares, exact[1], rtol=1e-4)


@pytest.mark.parametrize("instance", KERNELS, ids=instance_name)
def test_every_instance(library: Library, instance: Instance) -> None:
    kernel = library.kernel(instance)
    for problem in problems(library, instance):
        for captured in (False, True):
            kernel.launch(problem.arguments, captured)
            _check(instance, problem)


@pytest.mark.parametrize(
    "instance", [i for i in READING if i.dtype is DType.F16], ids=instance_name
)
def test_buffers_of_means_and_scales_are_used_again(library: Library, instance: Instance) -> None:
    """Their barriers go through several phases, with main loops of the shortest kind."""
    problem = gemm_moments.problem(library, instance, MANY_TILES)
    library.kernel(instance).launch(problem.arguments)
    _check(instance, problem)


@pytest.mark.parametrize("instance", [i for i in READING if i in STREAMING][::6], ids=instance_name)
def test_rows_with_large_means_lose_what_float32_loses(
    library: Library, instance: Instance
) -> None:
    """Means up to about which planning would fold a norm."""
    problem = gemm_moments.problem(library, instance, (500, 5, 12, 0), mean=64.0)
    library.kernel(instance).launch(problem.arguments)
    _check(instance, problem)


@pytest.mark.parametrize("instance", KERNELS[::5], ids=instance_name)
def test_results_are_the_same_bits_on_every_run(library: Library, instance: Instance) -> None:
    kernel = library.kernel(instance)
    problem = gemm_moments.problem(library, instance, gemm_moments.SHAPES[-1])
    answers = set()
    for run in range(RUNS):
        kernel.launch(problem.arguments, captured=run % 2 == 1)
        moments = b"" if problem.moments is None else problem.moments.read().tobytes()
        answers.add((problem.output.read().tobytes(), moments))
    assert len(answers) == 1


@pytest.mark.parametrize(
    "instance", [i for i in WRITING if i not in READING][::4], ids=instance_name
)
def test_statistics_do_not_depend_on_other_rows(library: Library, instance: Instance) -> None:
    """With fewer rows they lie closer together."""
    kernel, rows = library.kernel(instance), 77
    problem = gemm_moments.problem(library, instance, (500, 5, 3, 0))
    assert problem.moments is not None
    kernel.launch(problem.arguments)
    whole = problem.moments.read()
    problem.arguments.m = rows
    kernel.launch(problem.arguments)
    closer = problem.moments.read().reshape(-1, 2)[: 5 * rows].reshape(5, rows, 2)
    assert np.array_equal(closer, whole[:, :rows])


@pytest.mark.parametrize("reader", [i for i in READING if i in STREAMING][::6], ids=instance_name)
def test_a_product_reads_what_the_one_before_has_written(
    library: Library, reader: Instance
) -> None:
    writer = next(i for i in STREAMING if i.dtype is reader.dtype and i.chain == ("Bias", MOMENTS))
    first = gemm_moments.problem(library, writer, (1000, 12, 3, 0))
    second = gemm_moments.problem(library, reader, (1000, 3, 12, 0))
    assert first.moments is not None
    second.arguments.a, second.arguments.lda = first.output.pointer, first.output.pitch
    second.arguments.moments_of_a = first.moments.pointer
    kernels = library.kernel(writer), library.kernel(reader)
    for kernel, problem in zip(kernels, (first, second), strict=True):
        kernel.launch(problem.arguments)
    norm = "LayerNorm" if FOLDED_NORMS[reader.chain[0]] else "RmsNorm"
    normalized = epilogue(first.output.read().astype(np.float64), (norm,), (), ())
    weight, operands = second.kept[1].read().astype(np.float64), second.kept[2]
    steps = tuple(step for step in reader.chain if not EPILOGUES[step].statistics)
    vectors = operands.vectors[int(FOLDED_NORMS[reader.chain[0]]) :]
    expected = epilogue(normalized @ weight.T, steps, vectors, operands.tensors)
    assert relative_error(second.output.read(), expected) <= LIMITS[reader.dtype]


@pytest.mark.parametrize(
    ("kernels", "field", "value", "text"),
    [
        (READING, "moments_of_a", None, "statistics of rows are missing"),
        (READING, "moments_of_a", 4, "not aligned to 8 bytes"),
        (READING, "k", PART + 8, "multiples of 64"),
        (WRITING, "moments_of_d", None, "statistics of rows are missing"),
        (WRITING, "n", PART + 8, "multiples of 64"),
    ],
)
def test_refusals(
    library: Library, kernels: list[Instance], field: str, value: int | None, text: str
) -> None:
    instance = next(i for i in kernels if i.dtype is DType.F16)
    problem = gemm_moments.problem(library, instance, (64, 2, 2, 0))
    setattr(problem.arguments, field, value)
    with pytest.raises(KernelError, match=text):
        library.kernel(instance).check(problem.arguments)
