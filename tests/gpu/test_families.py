"""Requirements on every configuration of every kernel family: the same bits in every run, and no
finding of compute-sanitizer."""

from __future__ import annotations

import pytest

from tests.gpu import sanitizer
from tests.gpu.cases import ALL
from tests.gpu.device import Library
from tests.gpu.problems import examples, problems

pytestmark = pytest.mark.gpu
EXAMPLES = examples(ALL)
RUNS = 100


@pytest.mark.parametrize("form", EXAMPLES)
def test_every_run_gives_the_same_bits(library: Library, form: str) -> None:
    """Directly and from a CUDA graph, on every shape; with k split in test_sm90.py."""
    kernel = library.kernel(EXAMPLES[form])
    for problem in problems(library, EXAMPLES[form]):
        answers = set()
        for run in range(2 * RUNS):
            kernel.launch(problem.arguments, captured=run % 2 == 1)
            answers.add(problem.output.read().tobytes())
        assert len(answers) == 1


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
@pytest.mark.parametrize("form", EXAMPLES)
def test_compute_sanitizer_finds_nothing(library: Library, form: str, tool: str) -> None:
    sanitizer.check(tool, "tests.gpu.run_family", str(library.path), form)
