"""Launch one instance of a form of a kernel family on all its shapes: `python -m
tests.gpu.run_family LIBRARY.so FORM`, for compute-sanitizer. tests/gpu/problems.py names the forms.

Every launch is made twice: directly, and from a CUDA graph.
"""

from __future__ import annotations

import sys
from pathlib import Path

from onnxbolt.codegen.render import instance_name
from tests.gpu.cases import ALL
from tests.gpu.device import Library
from tests.gpu.problems import examples, limit, problems
from tests.gpu.reference import relative_error


def main(path: str, form: str) -> None:
    library, instance = Library(Path(path)), examples(ALL)[form]
    kernel = library.kernel(instance)
    for problem in problems(library, instance):
        for captured in (False, True):
            kernel.launch(problem.arguments, captured)
            answer = problem.output.read()
            assert problem.expected is None or relative_error(answer, problem.expected) <= limit(
                instance
            ), answer.shape
    print(instance_name(instance))


if __name__ == "__main__":
    main(*sys.argv[1:])
