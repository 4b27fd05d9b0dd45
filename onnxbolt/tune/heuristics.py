"""Candidates that nvidia-matmul-heuristics recommends, if the user has installed it
(`onnxbolt[heuristics]`, under a proprietary licence).

Its absolute times are pessimistic and it knows neither epilogues nor convolutions; so it adds
candidates and never ranks them.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from onnxbolt import families
from onnxbolt.archs import Arch, Shape
from onnxbolt.dtypes import DType
from onnxbolt.families import KernelConfig
from onnxbolt.problems import Problem

_COUNT = 8
_PRECISIONS = {DType.F16: "HSH", DType.BF16: "TST"}  # A and B, accumulator, C and D


def seeds(problem: Problem, arch: Arch) -> tuple[KernelConfig, ...]:
    """The candidates whose tile the library proposes; none if it is absent or does not know the
    type or the GPU."""
    shape = problem.gemm_shape
    if shape is None or problem.dtype not in _PRECISIONS or not arch.heuristics_gpu:
        return ()
    found = families.candidates(problem, arch)
    known = {c.family for c in found if c.family.heuristics_target}
    proposed = {
        (family, tile)
        for family in known
        for tile in _tiles(shape, problem.dtype, arch, family.heuristics_target)
    }
    return tuple(c for c in found if (c.family, getattr(c, "tile", None)) in proposed)


def _tiles(shape: Shape, dtype: DType, arch: Arch, target: str) -> list[Shape]:
    """Tiles (m, n, k) that the library proposes for a product m, n, k."""
    found = _library(arch.heuristics_gpu, target)
    if found is None:
        return []
    module, interface, backend = found
    layout = module.NvMatmulHeuristicsMatmulLayout.TN_ROW_MAJOR
    asked = interface.makeNvMatmulHeuristicsProblem(*shape, layout, 1)
    answers = interface.getEx(asked, _COUNT, backend, precision=_PRECISIONS[dtype])
    return [
        (k.cta_tile_m, k.cta_tile_n, k.cta_tile_k) for k in (answer["kernel"] for answer in answers)
    ]


@functools.cache
def _library(gpu: str, target: str) -> tuple[Any, Any, Any] | None:
    """Module, interface and backend; None if the library is not installed or does not load."""
    try:
        module = importlib.import_module("nvMatmulHeuristics")
    except (ImportError, OSError):
        return None
    chosen = module.NvMatmulHeuristicsTarget[target]
    interface = module.NvMatmulHeuristicsInterfaceEx(
        backend=chosen,
        flags=module.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
        load_discovery_implicitly=True,
        gpu=module.NvMatmulHeuristicsNvidiaGpu[gpu],
    )
    return module, interface, interface.createBackend(chosen)
