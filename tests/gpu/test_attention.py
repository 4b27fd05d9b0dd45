"""Attention on a GPU against float64: forms of masks x sizes of heads x lengths, orders of
operands, heads that share keys, answers for queries without keys."""

from __future__ import annotations

import numpy as np
import pytest

from onnxbolt.codegen.render import instance_name
from onnxbolt.dtypes import DType
from onnxbolt.families.attention import AttentionConfig
from tests.gpu import attentions
from tests.gpu.attention_cases import Served, is_resident, served
from tests.gpu.cases import ARCH
from tests.gpu.device import KernelError, Library
from tests.ops.attention_cases import Case

pytestmark = pytest.mark.gpu

SERVED = served(ARCH)
# beside the result also the weights are rounded
LIMITS = {DType.F16: 2e-3, DType.BF16: 1.5e-2, DType.F32: 2e-3}


def _name(each: Served) -> str:
    return instance_name(each.instance)


def _first() -> list[Served]:
    """A kernel with a mask and one without of each family, such whose blocks divide keys, and such
    whose results are codes."""
    found = dict[tuple[str, bool, bool, bool], Served]()
    for each in SERVED:
        config, masked = each.instance.config, each.cases[0][1].mask_shape != ()
        divided = isinstance(config, AttentionConfig) and config.splits > 1
        is_code = each.instance.out.is_code
        found.setdefault((config.family.name, masked, divided, is_code), each)
    return list(found.values())


@pytest.mark.parametrize("each", SERVED, ids=_name)
def test_attention(library: Library, each: Served) -> None:
    kernel, limit = library.kernel(each.instance), LIMITS[each.instance.dtype]
    for form, case in each.cases:
        problem = attentions.problem(library, case, out=each.instance.out)
        kernel.check(problem.arguments)
        kernel.launch(problem.arguments)
        error = attentions.error(problem)
        assert error <= limit, f"{form}: {case}"


@pytest.mark.parametrize("each", [each for each in SERVED if is_resident(each)], ids=_name)
def test_blocks_that_take_several_batches(library: Library, each: Served) -> None:
    kernel, limit = library.kernel(each.instance), LIMITS[each.instance.dtype]
    for form, case in each.cases:
        problem = attentions.problem(library, attentions.repeated(case))
        kernel.launch(problem.arguments)
        assert attentions.error(problem) <= limit, f"{form}: {case}"


@pytest.mark.parametrize("each", _first(), ids=_name)
def test_it_runs_in_a_graph(library: Library, each: Served) -> None:
    problem = _short_problem(library, each, seed=1)
    library.kernel(each.instance).launch(problem.arguments, captured=True)
    assert attentions.error(problem) <= LIMITS[each.instance.dtype]


@pytest.mark.parametrize("each", _first(), ids=_name)
def test_results_are_the_same_bits_on_every_run(library: Library, each: Served) -> None:
    kernel, problem = library.kernel(each.instance), _short_problem(library, each)
    answers = set()
    for _ in range(100):
        kernel.launch(problem.arguments)
        answers.add(problem.output.read().tobytes())
    assert len(answers) == 1


@pytest.mark.parametrize("each", _first(), ids=_name)
def test_nothing_is_read_beyond_the_last_key(library: Library, each: Served) -> None:
    """Poison lies between rows and behind the tensors; without gaps the next row follows."""
    problem = _short_problem(library, each, gap=0)
    library.kernel(each.instance).launch(problem.arguments)
    assert attentions.error(problem) <= LIMITS[each.instance.dtype]


@pytest.mark.parametrize("each", _first(), ids=_name)
def test_no_batches_are_no_launch(library: Library, each: Served) -> None:
    problem = _short_problem(library, each)
    problem.arguments.batch = 0
    library.kernel(each.instance).launch(problem.arguments)
    assert np.all(problem.output.read().view(np.uint8) == 0xFF)


@pytest.mark.parametrize("field", ["size", "key_heads", "scale"])
@pytest.mark.parametrize("each", _first(), ids=_name)
def test_refusals(library: Library, each: Served, field: str) -> None:
    problem = _short_problem(library, each)
    changed = {"size": 264, "key_heads": 3, "scale": -1.0}
    setattr(problem.arguments, field, changed[field])
    with pytest.raises(KernelError):
        library.kernel(each.instance).check(problem.arguments)


def _short(each: Served) -> Case:
    """A case of several tiles."""
    return next((case for _, case in each.cases if 100 < case.keys <= 512), each.cases[0][1])


def _short_problem(
    library: Library, each: Served, gap: int = attentions.GAP, seed: int = 0
) -> attentions.AttentionProblem:
    return attentions.problem(library, _short(each), gap, seed, each.instance.out)
