"""Convolutions of volumes with bias against cuDNN's bare ones in NDHWC and NCDHW, fp16, in one run.

    # all of SHAPES; writes results/conv3d-<gpu>.json
    python -m benchmarks.conv3d
    python -m benchmarks.conv3d --shapes "nnU-Net 32" --append
    # only compiles the kernels, for which no GPU is needed
    python -m benchmarks.conv3d --build

Ours is the fastest of the kernels that TMA's im2col serves. cuDNN is called through PyTorch, its
algorithm searched for. Launches are in a CUDA graph on both sides, and tensors are rotated past L2.
Answers are compared with float64 first.
"""

from __future__ import annotations

import functools
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import peers
from benchmarks.common import ClockSampler, Row
from benchmarks.kernels import Kernel, compile_all, kernels, measured_rows, parser
from benchmarks.racing import against, say, take_turns
from onnxbolt.archs import Arch, get
from onnxbolt.dtypes import DType
from onnxbolt.errors import OnnxboltError
from onnxbolt.families import KernelConfig, named
from onnxbolt.inspection import describe
from onnxbolt.plan.cost import floor_us
from onnxbolt.problems import Conv3dProblem
from tests.gpu.device import Conv, DepthAxis

_CHAIN = ("Bias",)
FEW = 12  # configurations that are timed, the best by prediction
_SAMPLES, _LIMIT, _BUILT_FOR = 5, 2e-3, 90


@dataclass(frozen=True)
class Shape:
    """Volumes whose axes all have the same filter, stride and pad."""

    name: str
    n: int
    volume: tuple[int, int, int]
    c: int
    k: int
    size: int = 3
    stride: int = 1

    @property
    def pad(self) -> int:
        """Half of the filter."""
        return self.size // 2

    @property
    def problem(self) -> Conv3dProblem:
        """The problem of our kernels."""
        d, h, w = ((size + 2 * self.pad - self.size) // self.stride + 1 for size in self.volume)
        filter_, pads = (self.size,) * 3, (self.pad,) * 6
        strides, ones, half = (self.stride,) * 3, (1, 1, 1), DType.F16
        channels, y = (self.c, self.k), (d, h, w)
        return Conv3dProblem(
            self.n, self.volume, *channels, filter_, y, pads, strides, ones, 1, half, half, _CHAIN
        )


# nnU-Net's stages for patches of 128^3, with the steps between them, and ResNet3D-18's for video
SHAPES = (
    Shape("nnU-Net 32", 1, (128, 128, 128), 32, 32),
    Shape("nnU-Net 32 to 64", 1, (128, 128, 128), 32, 64, stride=2),
    Shape("nnU-Net 64", 1, (64, 64, 64), 64, 64),
    Shape("nnU-Net 128", 1, (32, 32, 32), 128, 128),
    Shape("nnU-Net 256", 1, (16, 16, 16), 256, 256),
    Shape("nnU-Net 320", 1, (8, 8, 8), 320, 320),
    Shape("nnU-Net 64 of two", 1, (128, 128, 128), 64, 32),
    Shape("ResNet3D 64", 8, (16, 56, 56), 64, 64),
    Shape("ResNet3D 64 to 128", 8, (16, 56, 56), 64, 128, stride=2),
    Shape("ResNet3D 128", 8, (8, 28, 28), 128, 128),
    Shape("ResNet3D 256", 8, (4, 14, 14), 256, 256),
    Shape("ResNet3D points", 8, (16, 56, 56), 64, 128, size=1, stride=2),
)


def configurations(problem: Conv3dProblem, arch: Arch) -> list[KernelConfig]:
    """The FEW best by prediction, of kernels that no plan chooses as well."""
    family = named("conv3d_sm90")
    found = family.candidates(problem, arch)
    return sorted(found, key=lambda config: family.predicted_us(problem, config, arch))[:FEW]


@dataclass(frozen=True)
class Tensors:
    """The tensors of a row on the device, several sets of them."""

    shape: Shape
    x: Any  # [sets, N, D, H, W, C]
    weight: Any  # [K, T, R, S, C]
    bias: Any
    y: Any

    @classmethod
    def of(cls, shape: Shape) -> Tensors:
        """Random ones."""
        torch, problem, half = peers.pytorch(), shape.problem, DType.F16
        sets = peers.operand_sets(problem.bytes_moved)
        x = peers.normal((sets, shape.n, *shape.volume, shape.c), half)
        deviation = (shape.c * problem.taps) ** -0.5
        weight = peers.normal((shape.k, *problem.filter, shape.c), half, deviation)
        bias = peers.normal((shape.k,), DType.F32)
        y = torch.zeros((sets, shape.n, *problem.y, shape.k), dtype=x.dtype).cuda()
        return cls(shape, x, weight, bias, y)

    @property
    def sets(self) -> int:
        """How many sets of tensors there are."""
        return int(self.x.shape[0])

    def arguments(self, i: int) -> Conv:
        """Those of our kernels."""
        p = self.shape.problem
        (d, h, w), (o, *y), (t, *filter_) = p.x, p.y, p.filter
        pads = (self.shape.pad,) * 4
        found = Conv(p.n, h, w, p.c, p.k, *filter_, *y, *pads, *p.strides[1:], 1, 1, 1)
        found.depth = DepthAxis(d, t, o, self.shape.pad, self.shape.pad, self.shape.stride, 1)
        found.x, found.y = self.x[i].data_ptr(), self.y[i].data_ptr()
        found.filter = self.weight.data_ptr()
        found.x_pitch, found.y_pitch = p.c, p.k
        found.epilogue.vectors[0] = self.bias.data_ptr()
        return found

    def bare(self, last: bool) -> peers.Operation:
        """cuDNN's, without the bias."""
        x, weight = self.x.movedim(5, 2), self.weight.movedim(4, 1)
        x, weight = (x, weight) if last else (x.contiguous(), weight.contiguous())
        return peers.Operation(lambda i: self._convolved(x[i], weight), self.sets)

    def _convolved(self, x: Any, weight: Any) -> Any:
        functional = peers.pytorch().nn.functional
        return functional.conv3d(x, weight, None, self.shape.stride, self.shape.pad)

    @functools.cached_property
    def _expected(self) -> Any:
        """The first set's result in float64, [N, O, P, Q, K]."""
        x, weight = self.x[0].movedim(4, 1).double(), self.weight.movedim(4, 1).double()
        return self._convolved(x, weight).movedim(1, 4) + self.bias.double()

    def error(self) -> float:
        """The relative error of the first set's result, which is forgotten."""
        found = self.y[0].double()
        error = float((found - self._expected).norm() / self._expected.norm())
        self.y.zero_()
        return error


def _operation(tensors: Tensors, kernel: Kernel) -> peers.Operation:
    return kernel.operation([tensors.arguments(i) for i in range(tensors.sets)])


def _fastest(tensors: Tensors, arch: Arch) -> Kernel:
    problem, times = tensors.shape.problem, dict[Kernel, float]()
    say(f" {problem.description}")
    for kernel in kernels(problem, configurations(problem, arch)):
        operation = _operation(tensors, kernel)
        operation.run(0)
        if not (error := tensors.error()) <= _LIMIT:
            raise OnnxboltError(f"{problem.shape}, {describe(kernel.config)}: error {error:.1e}")
        times[kernel] = statistics.median(operation.measure()(_SAMPLES))
        say(f"  {times[kernel]:7.3f} us  {describe(kernel.config)}")
    if not times:
        raise OnnxboltError(f"{problem.shape}: no kernel was measured")
    return min(times, key=lambda kernel: times[kernel])


def _measured(shape: Shape, arch: Arch) -> Row:
    say(shape.name)
    tensors = Tensors.of(shape)
    chosen = _fastest(tensors, arch)
    ours, theirs = "ours", {"channels last": True, "channels first": False}
    operation = _operation(tensors, chosen)
    sides = {ours: operation.measure()}
    sides |= {name: tensors.bare(last).measure() for name, last in theirs.items()}
    with ClockSampler() as clock:
        samples = take_turns(sides)
    peer = min(theirs, key=lambda name: samples[name].median)
    operation.run(0)
    return Row(
        shape.name,
        shape.n,
        "fp16",
        **against(samples[ours], samples[peer].median),
        peer=f"cuDNN, bare, {peer}",
        floor_us=round(floor_us(shape.problem, arch), 3),
        error=float(f"{tensors.error():.3e}"),
        clock_mhz=clock.mhz,
        config=describe(chosen.config),
        values={name: round(samples[name].median, 3) for name in sides},
    )


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser((__doc__ or "").splitlines()[0])
    options.add_argument("--shapes", type=lambda text: text.split(","), default=[], metavar="NAME")
    chosen = options.parse_args(arguments)
    found = [shape for shape in SHAPES if not chosen.shapes or shape.name in chosen.shapes]
    if chosen.build:
        arch = get(_BUILT_FOR)
        each = (shape.problem for shape in found)
        return compile_all((p, config) for p in each for config in configurations(p, arch))
    rows = measured_rows(
        "conv3d",
        (functools.partial(_measured, shape) for shape in found),
        chosen,
        [(shape.name, shape.n) for shape in SHAPES],
        lambda row: f"{row.name}: {row.ours_us} us, {row.peer} {row.peer_us}, {row.ratio}",
    )
    return int(rows is None)


if __name__ == "__main__":
    sys.exit(main())
