"""Transposed convolutions with bias and ReLU against cuDNN's bare ones in NHWC and NCHW, fp16, in
one run.

    # all of SHAPES; writes results/conv_transpose-<gpu>.json
    python -m benchmarks.conv_transpose
    python -m benchmarks.conv_transpose --shapes "k2s2 decoder of a text detector" --append
    # only compiles the kernels, for which no GPU is needed
    python -m benchmarks.conv_transpose --build

Ours is the fastest of the kernels that store pixels of phases and, for lines whose phases lie in
rows, of those of convolutions; `values` has both. cuDNN is called through PyTorch, its algorithm
searched for. Launches are in a CUDA graph on both sides, and tensors are rotated past L2. Answers
are compared with float64 first.
"""

from __future__ import annotations

import dataclasses
import functools
import math
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
from onnxbolt.ops.conv_transpose.geometry import Axis
from onnxbolt.ops.conv_transpose.packing import by_phases
from onnxbolt.ops.conv_transpose.problem import by_axes
from onnxbolt.plan.cost import floor_us, ranked
from onnxbolt.problems import ConvProblem, ConvTranspose3dProblem, ConvTransposeProblem, Problem
from tests.gpu.device import Conv, PhasedPixels

_CHAIN = ("Bias", "Relu")
FEW = 12  # configurations of each family that are timed, the best by prediction
_SAMPLES, _LIMIT, _BUILT_FOR = 5, 2e-3, 90
_PIXELS, _ROWS = "pixels of phases", "rows"


@dataclass(frozen=True)
class Shape:
    """Images, or lines of height 1, with the filter, stride, pads and output padding of each axis
    but a line's height. With a `depth`, volumes of so many slices, whose stride is the filter."""

    name: str
    n: int
    image: tuple[int, int]
    c: int
    k: int
    size: int
    stride: int
    pad: int = 0
    padding: int = 0
    depth: int = 0

    @property
    def volumes(self) -> tuple[int, ...]:
        """The first axes of x: the batch, and of volumes the depth."""
        return (self.n, self.depth) if self.depth else (self.n,)

    def axes(self, in_rows: bool = False) -> tuple[Axis, Axis]:
        """Both axes; `in_rows`: zeros in front of a line's filter make its phases whole."""
        pads = (self.pad, self.pad)
        axis = Axis(self.stride, 1, self.size, pads, self.padding)
        if self.image[0] > 1:
            return axis, axis
        front = -self.pad % self.stride if in_rows else 0
        return Axis(1, 1, 1, (0, 0), 0), dataclasses.replace(axis, front=front)

    def axes_of_filter(self, in_rows: bool = False) -> tuple[Axis, ...]:
        """Those of `axes`, behind the depth of volumes."""
        depth = (Axis(self.stride, 1, self.size, (0, 0), 0),) if self.depth else ()
        return (*depth, *self.axes(in_rows))

    def transposed(self, in_rows: bool = False) -> ConvTransposeProblem | ConvTranspose3dProblem:
        """The problem of kernels that store pixels."""
        half = DType.F16
        sizes = (math.prod(self.volumes), *self.image, self.c, self.k)
        found = by_axes(sizes, self.axes(in_rows), 1, half, half, _CHAIN)
        return found.of_volumes(self.stride) if self.depth else found

    @property
    def problems(self) -> dict[str, Problem]:
        """The problems of our kernels, by how they store y."""
        found: dict[str, Problem] = {_PIXELS: self.transposed()}
        if self.image[0] == 1 and self.axes(in_rows=True)[1].whole:
            found[_ROWS] = self.transposed(in_rows=True).convolution
        return found


# a U-Net's steps upwards, a text detector's head without its last layer, DCGAN's and CycleGAN's
# generators, HiFi-GAN's layers of 16 and of 4 taps, an encoder of speech turned round, nnU-Net's
# steps upwards
SHAPES = (
    Shape("k2s2 U-Net 512", 8, (32, 32), 512, 256, 2, 2),
    Shape("k2s2 U-Net 128", 8, (128, 128), 128, 64, 2, 2),
    Shape("k2s2 decoder of a text detector", 1, (184, 320), 64, 64, 2, 2),
    Shape("k4s2p1 DCGAN 512", 32, (8, 8), 512, 256, 4, 2, 1),
    Shape("k4s2p1 DCGAN 128", 32, (32, 32), 128, 64, 4, 2, 1),
    Shape("k3s2p1 CycleGAN 256", 8, (64, 64), 256, 128, 3, 2, 1, 1),
    Shape("k3s2p1 CycleGAN 128", 8, (128, 128), 128, 64, 3, 2, 1, 1),
    Shape("k4s4 mask of queries", 4, (64, 64), 256, 64, 4, 4),
    Shape("1-D k16s8p4 HiFi-GAN", 8, (1, 256), 512, 256, 16, 8, 4),
    Shape("1-D k4s2p1 HiFi-GAN", 8, (1, 16384), 128, 64, 4, 2, 1),
    Shape("3-D k2s2 nnU-Net 64", 1, (64, 64), 64, 32, 2, 2, depth=64),
    Shape("3-D k2s2 nnU-Net 256", 1, (16, 16), 256, 128, 2, 2, depth=16),
)


def configurations(problem: Problem, arch: Arch) -> list[KernelConfig]:
    """The FEW best by prediction, of kernels that no plan chooses as well."""
    if isinstance(problem, ConvProblem):
        return [config for _, config in ranked(problem, arch)[:FEW]]
    family = named("conv_transpose_sm90")
    found = family.candidates(problem, arch)
    return sorted(found, key=lambda config: family.predicted_us(problem, config, arch))[:FEW]


@dataclass(frozen=True)
class Tensors:
    """The tensors of a row on the device, several sets of them."""

    shape: Shape
    x: Any  # [sets, N, H, W, C], of volumes [sets, N, D, H, W, C]
    weight: Any  # [C, K, R, S] or [C, K, T, R, S] as PyTorch has it
    packed: dict[str, Any]  # for each problem
    bias: Any
    vectors: dict[str, Any]
    y: Any

    @classmethod
    def of(cls, shape: Shape) -> Tensors:
        """Random ones."""
        torch, problem, half = peers.pytorch(), shape.transposed(), DType.F16
        sets = peers.operand_sets(problem.bytes_moved)
        x = peers.normal((sets, *shape.volumes, *shape.image, shape.c), half)
        filter_ = [axis.size for axis in shape.axes_of_filter()]
        deviation = (shape.c * shape.size) ** -0.5
        weight = peers.normal((shape.c, shape.k, *filter_), half, deviation)
        bias = peers.normal((shape.k,), DType.F32)
        packed, vectors = {}, {}
        for name in shape.problems:
            filters = weight.transpose(0, 1).cpu().numpy()
            rows = by_phases(filters, 1, shape.axes_of_filter(name == _ROWS))
            packed[name] = torch.from_numpy(rows.copy()).cuda()
            vectors[name] = bias.repeat(problem.phases)
        slices = (shape.depth * shape.stride,) if shape.depth else ()
        pixels = (sets, shape.n, *slices, problem.p, problem.q)
        y = torch.zeros((*pixels, shape.k), dtype=x.dtype).cuda()
        return cls(shape, x, weight, packed, bias, vectors, y)

    @property
    def sets(self) -> int:
        """How many sets of tensors there are."""
        return int(self.x.shape[0])

    def arguments(self, name: str, i: int) -> Conv:
        """Those of the kernels for a problem."""
        problem = self.shape.transposed(name == _ROWS)
        conv = problem.convolution
        sizes = (conv.n, conv.h, conv.w, conv.c, conv.k, conv.r, conv.s, conv.p, conv.q)
        found = Conv(*sizes, *conv.pads, *conv.strides, *conv.dilations, conv.groups)
        found.x, found.y = self.x[i].data_ptr(), self.y[i].data_ptr()
        found.filter = self.packed[name].data_ptr()
        found.x_pitch, found.y_pitch = conv.c, conv.k if name == _ROWS else problem.k
        found.epilogue.vectors[0] = self.vectors[name].data_ptr()
        if name != _ROWS:
            places = (*problem.strides, *problem.cut, problem.p, problem.q, *problem.zeros)
            found.pixels = PhasedPixels(*places, problem.slices_of_y)
        return found

    def bare(self, last: bool) -> peers.Operation:
        """cuDNN's, without bias and ReLU."""
        torch = peers.pytorch()
        x, weight = self.x.movedim(-1, 2), self.weight
        form = torch.channels_last_3d if self.shape.depth else torch.channels_last
        weight = weight.contiguous(memory_format=form) if last else weight
        x = x if last else x.contiguous()
        return peers.Operation(lambda i: self._transposed(x[i], weight), self.sets)

    def _transposed(self, x: Any, weight: Any) -> Any:
        functions, axes = peers.pytorch().nn.functional, self.shape.axes_of_filter()
        compute = functions.conv_transpose3d if self.shape.depth else functions.conv_transpose2d
        strides, pads, more = (
            tuple(values)
            for values in zip(*((a.stride, a.pads[0], a.padding) for a in axes), strict=True)
        )
        return compute(x, weight, None, strides, pads, more)

    def error(self) -> float:
        """The relative error of the first set's result, which is forgotten."""
        x, weight = self.x[0].movedim(-1, 1).double(), self.weight.double()
        bias = self.bias.double().reshape(-1, *[1] * (x.ndim - 2))
        expected = (self._transposed(x, weight) + bias).relu()
        expected, found = expected.movedim(1, -1), self.y[0].double()
        error = float((found - expected).norm() / expected.norm())
        self.y.zero_()
        return error


def _operation(tensors: Tensors, name: str, kernel: Kernel) -> peers.Operation:
    return kernel.operation([tensors.arguments(name, i) for i in range(tensors.sets)])


def _fastest(tensors: Tensors, name: str, problem: Problem, arch: Arch) -> Kernel:
    times: dict[Kernel, float] = {}
    say(f" {problem.description}")
    for kernel in kernels(problem, configurations(problem, arch)):
        operation = _operation(tensors, name, kernel)
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
    chosen = {name: _fastest(tensors, name, p, arch) for name, p in shape.problems.items()}
    operations = {name: _operation(tensors, name, kernel) for name, kernel in chosen.items()}
    theirs = {"channels last": tensors.bare(True), "channels first": tensors.bare(False)}
    sides = {name: operation.measure() for name, operation in (operations | theirs).items()}
    with ClockSampler() as clock:
        samples = take_turns(sides)
    ours, peer = (min(side, key=lambda name: samples[name].median) for side in (chosen, theirs))
    operations[ours].run(0)
    return Row(
        shape.name,
        shape.n,
        "fp16",
        **against(samples[ours], samples[peer].median),
        peer=f"cuDNN, bare, {peer}",
        floor_us=round(floor_us(shape.transposed(), arch), 3),
        error=float(f"{tensors.error():.3e}"),
        clock_mhz=clock.mhz,
        config=describe(chosen[ours].config),
        values={name: round(samples[name].median, 3) for name in sides} | {"ours": ours},
    )


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser((__doc__ or "").splitlines()[0])
    options.add_argument("--shapes", type=lambda text: text.split(","), default=[], metavar="NAME")
    chosen = options.parse_args(arguments)
    found = [shape for shape in SHAPES if not chosen.shapes or shape.name in chosen.shapes]
    if chosen.build:
        arch = get(_BUILT_FOR)
        each = dict.fromkeys(p for shape in found for p in shape.problems.values())
        return compile_all((p, config) for p in each for config in configurations(p, arch))
    rows = measured_rows(
        "conv_transpose",
        (functools.partial(_measured, shape) for shape in found),
        chosen,
        [(shape.name, shape.n) for shape in SHAPES],
        lambda row: f"{row.name}: {row.ours_us} us, {row.peer} {row.peer_us}, {row.ratio}",
    )
    return int(rows is None)


if __name__ == "__main__":
    sys.exit(main())
