"""GEMMs that normalize rows on a GPU against float64: every number of blocks in a cluster, every
schedule, tails, residuals, the second output, the same bits on every run.

Their blocks wait for each other: the first run of a change is `timeout 60 python -m
tests.gpu.run_family LIBRARY.so gemm_norm_sm90`, since a deadlock hangs the GPU's process.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxbolt.codegen.render import Instance, instance_name
from onnxbolt.dtypes import DType
from onnxbolt.families import named
from onnxbolt.opspec import configs_of_node
from onnxbolt.pipeline import optimize
from onnxbolt.verify import verify
from onnxbolt.verify.session import CUDA
from tests.e2e.test_gemm_norm import block
from tests.gpu import gemm_norms, norms
from tests.gpu.cases import ALL
from tests.gpu.device import KernelError, Library
from tests.gpu.reference import LIMITS
from tests.support import planned

pytestmark = pytest.mark.gpu

FAMILY = named("gemm_norm_sm90")
KERNELS = [instance for instance in ALL if instance.config.family is FAMILY]
STORING = [instance for instance in KERNELS if "Store" in instance.chain]
RUNS = 100


@pytest.mark.parametrize("instance", KERNELS, ids=instance_name)
def test_every_instance(library: Library, instance: Instance) -> None:
    kernel, limit = library.kernel(instance), LIMITS[instance.dtype]
    for problem in gemm_norms.problems(library, instance):
        norms.assert_right(kernel, problem, limit)


@pytest.mark.parametrize("instance", STORING[:6], ids=instance_name)
def test_results_are_the_same_bits_on_every_run(library: Library, instance: Instance) -> None:
    kernel = library.kernel(instance)
    problem = gemm_norms.problem(library, instance, gemm_norms.SHAPES[-1])
    assert problem.total is not None
    answers = set()
    for run in range(RUNS):
        kernel.launch(problem.arguments, captured=run % 2 == 1)
        answers.add((problem.output.read().tobytes(), problem.total.read().tobytes()))
    assert len(answers) == 1


@pytest.mark.parametrize("instance", KERNELS[::7], ids=instance_name)
def test_results_do_not_depend_on_other_rows(library: Library, instance: Instance) -> None:
    kernel = library.kernel(instance)
    problem = gemm_norms.problem(library, instance, (500, 33, 0))
    kernel.launch(problem.arguments)
    whole = problem.output.read()
    for rows in (1, 64, 77, 300):
        problem.arguments.m = rows
        kernel.launch(problem.arguments)
        assert np.array_equal(problem.output.read()[:rows], whole[:rows])


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("n", 64, "n is not that of the configuration's tiles"),
        ("ldd", 1001, "not aligned to align_c"),
        ("stored", None, "second output is missing"),
        ("stored", 8, "second output is not aligned"),
        ("lda", 1001, "not aligned to align_a"),
    ],
)
def test_refusals(library: Library, field: str, value: int | None, text: str) -> None:
    instance = next(i for i in STORING if i.dtype is DType.F16)
    problem = gemm_norms.problem(library, instance, gemm_norms.SHAPES[0])
    setattr(problem.arguments, field, value)
    with pytest.raises(KernelError, match=text):
        library.kernel(instance).check(problem.arguments)


def test_no_rows_are_no_launch(library: Library) -> None:
    problem = gemm_norms.problem(library, KERNELS[0], gemm_norms.SHAPES[0])
    problem.arguments.m = 0
    library.kernel(KERNELS[0]).launch(problem.arguments)
    assert np.all(problem.output.read().view(np.uint8) == 0xFF)


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("precision", ["fp16", "bf16", "keep"])
def test_a_model_s_node_stays_within_its_limits(precision: str, rms: bool, tmp_path: Path) -> None:
    source, out = block(rms), tmp_path / "out.onnx"
    with planned(FAMILY):
        optimize(source, out, precision=precision, fuse="all", verify=False)
    nodes = [n for n in onnx.load(out).graph.node if n.op_type.startswith("FusedGemm")]
    assert [{c.family for c in configs_of_node(node)} for node in nodes] == [{FAMILY}]
    result = verify(source, out, providers=[CUDA])
    assert result.passed, result.text()
    assert result.verdict.startswith("PASSED: kernels on")
