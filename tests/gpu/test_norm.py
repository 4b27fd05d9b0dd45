"""Normalizations of rows on a GPU against float64: every division of rows among threads, tails,
residuals, the second output, pitches, rows that no thread has; sequences of tokens; embeddings;
heads of tokens, and their rotation."""

from __future__ import annotations

import numpy as np
import pytest

from onnxbolt.codegen.render import Instance, instance_name
from onnxbolt.dtypes import DType
from onnxbolt.families import named
from tests.gpu import norms
from tests.gpu.cases import ALL
from tests.gpu.device import KernelError, Library
from tests.gpu.reference import LIMITS

pytestmark = pytest.mark.gpu

KERNELS = [instance for instance in ALL if instance.config.family is named("norm")]
HEADS = [instance for instance in KERNELS if instance.config.named()["heads"]]
TOKENS = [instance for instance in KERNELS if instance.config.named()["tokens"]]


@pytest.mark.parametrize("instance", KERNELS, ids=instance_name)
def test_norm(library: Library, instance: Instance) -> None:
    kernel, limit = library.kernel(instance), LIMITS[instance.dtype]
    for problem in norms.problems(library, instance):
        norms.assert_right(kernel, problem, limit)


@pytest.mark.parametrize("instance", KERNELS[:4] + HEADS[:4], ids=instance_name)
def test_results_are_the_same_bits_on_every_run(library: Library, instance: Instance) -> None:
    kernel, problem = library.kernel(instance), norms.problems(library, instance)[2]
    answers = []
    for _ in range(100):
        kernel.launch(problem.arguments)
        answers.append(problem.output.read().tobytes())
    assert len(set(answers)) == 1


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("columns", 2**20, "longer than the threads' registers"),
        ("x_pitch", 9, "not multiples of align_a"),
        ("sum", None, "second output is missing"),
        ("x", 2, "not aligned"),
    ],
)
def test_refusals(library: Library, field: str, value: int | None, text: str) -> None:
    kernels = (i for i in KERNELS if i.dtype is DType.F16 and i not in TOKENS + HEADS)
    instance = next(i for i in kernels if "Store" in i.chain)
    problem = norms.problems(library, instance)[0]
    setattr(problem.arguments, field, value)
    with pytest.raises(KernelError, match=text):
        library.kernel(instance).check(problem.arguments)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"tokens": 0}, "for other rows"),
        ({"tokens": 7, "rows": 15}, "no whole sequences"),
        ({"prefix": 5}, "no whole sequences"),
        ({"prefix": -1}, "no whole sequences"),
    ],
)
def test_refusals_of_tokens(library: Library, fields: dict[str, int], text: str) -> None:
    instance = TOKENS[0]
    problem = norms.problems(library, instance)[1]
    for field, value in fields.items():
        setattr(problem.arguments, field, value)
    with pytest.raises(KernelError, match=text):
        library.kernel(instance).check(problem.arguments)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"tables": 1}, "another number of tables"),
        ({"tokens": 7, "rows": 15}, "no whole sequences"),
        ({"prefix": 1}, "the place of a prefix"),
    ],
)
def test_refusals_of_embeddings(library: Library, fields: dict[str, int], text: str) -> None:
    instance = next(i for i in TOKENS if i.config.named()["tables"] == 2)
    problem = norms.problems(library, instance)[1]
    for field, value in fields.items():
        setattr(problem.arguments, field, value)
    with pytest.raises(KernelError, match=text):
        library.kernel(instance).check(problem.arguments)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"tokens": 0}, "for other rows"),
        ({"tokens": 7, "rows": 15}, "no whole sequences"),
        ({"gate": None}, "other vectors of sequences"),
        ({"shift": None}, "other vectors of sequences"),
        ({"scale": 2}, "sequence's vector is not aligned"),
    ],
)
def test_refusals_of_modulated_rows(
    library: Library, fields: dict[str, int | None], text: str
) -> None:
    instance = next(i for i in KERNELS if i.config.named()["modulation"] == 2)
    problem = norms.problems(library, instance)[1]
    for field, value in fields.items():
        setattr(problem.arguments, field, value)
    with pytest.raises(KernelError, match=text):
        library.kernel(instance).check(problem.arguments)


def test_tables_have_to_be_there_and_aligned(library: Library) -> None:
    instance = next(i for i in TOKENS if i.config.named()["tables"] == 1)
    problem = norms.problems(library, instance)[1]
    embedding = problem.arguments.embeddings[0]
    embedding.table += 1
    with pytest.raises(KernelError, match="a table is not aligned"):
        library.kernel(instance).check(problem.arguments)
    embedding.table = None
    with pytest.raises(KernelError, match="a table or its indices are missing"):
        library.kernel(instance).check(problem.arguments)


def test_no_rows_are_no_launch(library: Library) -> None:
    problem = norms.problems(library, KERNELS[0])[0]
    problem.arguments.rows = 0
    library.kernel(KERNELS[0]).launch(problem.arguments)
    assert np.all(problem.output.read().view(np.uint8) == 0xFF)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"heads": 0}, "no whole tokens"),
        ({"rows": 132}, "no whole tokens"),
        ({"begin": 1}, "do not begin at multiples"),
        ({"head_pitch": 17}, "do not begin at multiples"),
    ],
)
def test_refusals_of_heads(library: Library, fields: dict[str, int], text: str) -> None:
    instance = next(i for i in HEADS if i.config.named()["access"] == 8)
    problem = norms.problems(library, instance)[1]
    for field, value in fields.items():
        setattr(problem.arguments, field, value)
    with pytest.raises(KernelError, match=text):
        library.kernel(instance).check(problem.arguments)


def test_heads_need_a_table(library: Library) -> None:
    instance = next(i for i in HEADS if "Rotate" in i.chain)
    problem = norms.problems(library, instance)[1]
    problem.arguments.epilogue.rotation.table = None
    with pytest.raises(KernelError, match="the table of a rotation is missing"):
        library.kernel(instance).check(problem.arguments)
