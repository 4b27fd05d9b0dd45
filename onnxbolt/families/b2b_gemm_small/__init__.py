"""Back-to-back GEMMs that are too narrow for tensor cores, in one kernel, on every architecture:
each thread computes whole rows."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.archs import Arch
from onnxbolt.epilogues import MAX_LAYERS, fits_several, layers
from onnxbolt.families.base import Compiled, Family, Layers, access
from onnxbolt.families.blocks.access import alignment
from onnxbolt.families.blocks.b2b import LayersConfig, layer_flops, padded
from onnxbolt.families.blocks.memory import memory_us, vector_operands
from onnxbolt.families.row import at
from onnxbolt.kernel_time import US, overlapped
from onnxbolt.problems import GemmProblem

_COLUMNS = (4, 8, 16)  # columns of one product
_DEPTHS = (4, 8, 16, 32, 64)  # k of the first product
_THREADS = 128
_PROLOGUE_US, _LOSS = 0.4, 0.3
# part of the CUDA cores' rate, since they also read weights and convert values
_FP32_EFFICIENCY = 0.4


@dataclass(frozen=True, kw_only=True)
class B2bGemmSmallConfig(LayersConfig):
    """`rows` are threads, one row each. `access_k` and `access_n`: elements in one access of x and
    of y."""

    later: tuple[int, ...] = at("warp_m", "warp_n", "warp_k")  # type: ignore[misc]
    access_k: int = at("align_a", sound=access)
    access_n: int = at("align_c", sound=access)


class B2bGemmSmall(Family[B2bGemmSmallConfig]):
    """Serves layers of up to 16 columns."""

    number, name, config = 17, "b2b_gemm_small", B2bGemmSmallConfig
    takes = ("element", "output", "layers")
    problems, kinds = (GemmProblem,), frozenset({"gemm", "gemm_chain"})
    tensor_cores = False

    def candidates(self, problem: GemmProblem, arch: Arch) -> tuple[B2bGemmSmallConfig, ...]:
        """The one configuration, if any."""
        served = problem.inner and arch.supports(problem.dtype)
        if not served or not serves(problem.k, problem.widths, problem.chain):
            return ()
        first, *others = (_least(n, _COLUMNS) for n in problem.widths)
        return (
            B2bGemmSmallConfig(
                arch=arch.number,
                rows=_THREADS,
                columns=first,
                depth=_least(problem.k, _DEPTHS),
                later=padded(others),
                access_k=alignment(problem.k, problem.dtype),
                access_n=alignment(problem.n, problem.dtype),
            ),
        )

    def shared_memory(self, kernel: Compiled) -> int:
        config = kernel.config
        depths = (config.depth, *config.widths)
        steps = zip(config.widths, depths, layers(kernel.chain), strict=False)
        return 4 * sum(n * (depth + vector_operands(layer)) for n, depth, layer in steps)

    def predicted_us(self, problem: GemmProblem, config: B2bGemmSmallConfig, arch: Arch) -> float:
        """Each thread computes one row on the CUDA cores."""
        flops = problem.m * sum(layer_flops(config))
        compute = flops / (arch.fp32_flops * _FP32_EFFICIENCY) * US
        return arch.launch_us + _PROLOGUE_US + overlapped(compute, memory_us(problem, arch), _LOSS)

    def joins(self, layers: Layers) -> bool:
        return serves(layers.depth, layers.widths, layers.steps)


def serves(depth: int, widths: tuple[int, ...], steps: tuple[str, ...]) -> bool:
    """True if there is a kernel for rows of `depth` values and layers with these columns:
    residuals may stand behind the last one."""
    several = 2 <= len(widths) <= MAX_LAYERS and fits_several(steps)
    return several and max(widths) <= _COLUMNS[-1] and depth <= _DEPTHS[-1]


def _least(extent: int, sizes: tuple[int, ...]) -> int:
    return next(size for size in sizes if size >= extent)
