"""Several GEMMs in one kernel against our own kernel for each, and cuBLAS's, in fp16, in one run.

    # Bolt's table 1 and recommenders' MLPs; writes results/b2b_gemm-<gpu>.json
    python -m benchmarks.b2b_gemm
    python -m benchmarks.b2b_gemm --shapes 256-64-16 --append

Bias and ReLU stand behind each product. Rows of 429 are no multiple of 16 bytes, which TMA needs:
measured are rows with zeros behind them, as the optimizer has whoever writes them do, and rows as
they are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from benchmarks.b2b import chain_of, versus_apart
from benchmarks.racing import Entry, parser, run
from onnxbolt.dtypes import DType
from onnxbolt.problems import GemmProblem

# rows, columns of the input and of each layer, the gain over a kernel for each that is the aim
# (table 1: the paper's)
PAIRS = (
    (2464, (4, 1, 4), 1.24),
    (16384, (256, 64, 16), 1.34),
    (32768, (576, 128, 64), 1.28),
    (128320, (96, 32, 96), 1.46),
)
MLPS = tuple(
    (rows, widths, 1.5)
    for rows in (2048, 16384)
    for widths in ((256, 64, 16, 8), (429, 256, 64, 16), (432, 256, 64, 16))
)
_ALIGNMENT = DType.F16.alignment


def main(arguments: Sequence[str] | None = None) -> int:
    return run("b2b_gemm", entries(), parser(__doc__ or "").parse_args(arguments))


def entries() -> list[Entry]:
    found = []
    for rows, widths, target in (*PAIRS, *MLPS):
        problem, name = problem_of(rows, widths), "-".join(map(str, widths))
        measure = partial(versus_apart, name, rows, problem, "cuBLAS", target)
        found.append(Entry(name, rows, (problem, *problem.layers), measure))
    return found


def problem_of(rows: int, widths: Sequence[int]) -> GemmProblem:
    """The problem as it is stored: inner layers' columns are padded."""
    k, *inner, n = widths
    padded = tuple(-(-width // _ALIGNMENT) * _ALIGNMENT for width in inner)
    return GemmProblem(rows, n, k, DType.F16, DType.F16, chain_of(len(widths) - 1), padded)


if __name__ == "__main__":
    sys.exit(main())
