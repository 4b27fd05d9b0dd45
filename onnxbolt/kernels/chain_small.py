"""Several GEMMs that are too narrow for tensor cores in one kernel, on every architecture: a
thread has rows of its own (custom_ops/chain_small.h)."""

from __future__ import annotations

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import MAX_LAYERS, fits_several
from onnxbolt.kernels.config import UNBOUNDED, Family, GemmProblem, KernelConfig
from onnxbolt.kernels.feasibility import alignment

_COLUMNS = (4, 8, 16)  # of one product
_DEPTHS = (4, 8, 16, 32, 64)  # of the first one
_THREADS = 128


def serves(dtype: DType, k: int, widths: tuple[int, ...], chain: tuple[str, ...]) -> bool:
    """Whether there is a kernel for rows of `k` values and layers with these columns: residuals
    may stand behind the last one."""
    return (
        2 <= len(widths) <= MAX_LAYERS
        and max(widths) <= _COLUMNS[-1]
        and k <= _DEPTHS[-1]
        and fits_several(chain)
    )


def candidates(problem: GemmProblem, arch: Arch) -> tuple[KernelConfig, ...]:
    """The one configuration, if any: `threadblock` is (threads, columns of the first layer, k),
    `warp` the other layers' columns."""
    widths = (*problem.inner, problem.n)
    if not serves(problem.dtype, problem.k, widths, problem.chain):
        return ()
    columns = [_padded(n, _COLUMNS) for n in widths]
    warp = [*columns[1:], 0, 0]
    align_c = alignment(problem.n, problem.dtype)
    return (
        KernelConfig(
            arch.number,
            0,
            UNBOUNDED,
            Family.B2B_GEMM_SMALL,
            (_THREADS, columns[0], _padded(problem.k, _DEPTHS)),
            (warp[0], warp[1], warp[2]),
            align_a=alignment(problem.k, problem.dtype),
            align_c=align_c,
        ),
    )


def _padded(extent: int, sizes: tuple[int, ...]) -> int:
    return next(size for size in sizes if size >= extent)
