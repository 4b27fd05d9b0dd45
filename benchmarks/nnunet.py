"""An nnU-Net block on a volume, fp16: onnxbolt against ONNX Runtime and PyTorch, each at its best,
on one GPU, in one run.

    # optimize, tune, measure, write results/nnunet-<gpu>.json
    python -m benchmarks.nnunet --tune --cache DIR
    # a look: predicted kernels, few runs, no torch.compile
    python -m benchmarks.nnunet --quick

The block is twice a 3x3x3 convolution of 32 channels, InstanceNormalization and LeakyReLU, on a
volume of 128^3. ONNX Runtime has every setting that benchmarks/end_to_end.py tries, with fp16 or
fp32 inputs and outputs. PyTorch has the faster of NDHWC (channels_last_3d) and NCDHW, its
algorithms searched for, in each way of benchmarks/pytorch.py. onnxbolt reads and writes NCDHW like
the others. Weights and inputs are seeded; errors are against the block in fp32 without TF32.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import onnx

from benchmarks.common import Row, time_argument
from benchmarks.documents import write_results
from benchmarks.end_to_end import (
    FULL,
    PEER,
    QUICK,
    compared,
    facts,
    in_turns,
    optimized,
    print_rows,
)
from benchmarks.floors import floor_us
from benchmarks.forms import PLAIN
from benchmarks.pytorch_peer import FIRST, fastest_way, whole_model_on
from benchmarks.whole_models import add_options, error_of, exact_outputs, seeded_feeds, stream_for
from models.builder import GAIN, Builder
from onnxbolt.archs import by_name
from onnxbolt.gpu import local_arch
from onnxbolt.tune.cuda import Stream
from onnxbolt.tune.sessions import Arrays, Found, Source, search
from onnxbolt.tune.summary import Tuning

BLOCK = "nnunet_block"  # in benchmarks/pytorch.py, too
_CHANNELS, _SLOPE, _BUILT_FOR = 32, 0.01, "sm_90a"


@dataclasses.dataclass(frozen=True)
class Target:
    """The block on `batch` volumes of `side` pixels along each axis."""

    side: int = 128
    batch: int = 1

    @property
    def model(self) -> str:
        """Its name in the results."""
        return f"nnU-Net block, {self.side}^3"

    def build(self, precision: str = "fp32", io: str | None = None) -> onnx.ModelProto:
        """The block with seeded weights."""
        builder = Builder(self.batch, precision, 0, 17, io or precision)
        sizes, c = (_CHANNELS, *[self.side] * 3), _CHANNELS
        y = builder.input("x", *sizes)
        for i in range(2):
            scope, weight = f"{i}", builder.normal((c, c, 3, 3, 3), GAIN["relu"] / (c * 27) ** 0.5)
            parts = {
                "conv.weight": weight,
                "conv.bias": builder.normal((c,), 0.1),
                "norm.weight": 1 + builder.normal((c,), 0.1),
                "norm.bias": builder.normal((c,), 0.1),
            }
            filter_, bias, *factors = (
                builder.weight(f"{scope}.{name}", values) for name, values in parts.items()
            )
            y = builder.node("Conv", [y, filter_, bias], scope, pads=[1] * 6)
            y = builder.node("InstanceNormalization", [y, *factors], scope, epsilon=1e-5)
            y = builder.node("LeakyRelu", [y], scope, alpha=_SLOPE)
        builder.output("y", y, *sizes)
        return builder.model(BLOCK)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    chosen = parser.parse_args(arguments)
    stream = stream_for(chosen, parser)
    target = Target(chosen.side)
    with tempfile.TemporaryDirectory() as scratch:
        row = _measure(target, Path(scratch), stream, chosen)
    print_rows([row])
    everything = [(Target().model, Target().batch)]
    write_results("nnunet", [row], chosen.out, chosen.append, everything)
    return 0


def _measure(
    target: Target, scratch: Path, stream: Stream | None, chosen: argparse.Namespace
) -> Row:
    effort = QUICK if chosen.quick else FULL
    exact = target.build()
    feeds = seeded_feeds(exact)
    reference = exact_outputs(exact, feeds, stream)
    layout = _layout(feeds, stream)
    compile_within = 0.0 if chosen.quick else chosen.compile_within
    tunings = dict[str, Tuning]()
    with whole_model_on(stream, layout, feeds, compile_within) as raced:
        pytorch, tried = raced()  # max-autotune measures kernels: tuning would disturb it
        out = scratch / f"{BLOCK}.onnx"
        source = optimized(PLAIN, target.build("fp16"), out, stream, chosen, tunings)
        found: dict[str, Found] = {
            PLAIN: search([source], feeds, stream, effort.search_runs),
            PEER: search(_peers(target), feeds, stream, effort.search_runs),
        }
        samples, device, clock_mhz = in_turns(found, pytorch, feeds, stream, effort)
    errors = {PLAIN: error_of(found[PLAIN].session, reference)}
    row = compared(target, samples, device, found, errors, {})
    row.values.update(facts(chosen, tried, {}, tunings))
    if pytorch:
        row.values["pytorch_way"] = f"{layout}: {fastest_way(tried)}"
    floor = floor_us(exact, by_name(local_arch() or _BUILT_FOR))
    return dataclasses.replace(row, floor_us=round(floor, 2), clock_mhz=clock_mhz)


def _layout(feeds: Arrays, stream: Stream | None) -> str:
    """PyTorch's name of the block in the layout that is faster without torch.compile."""
    times = dict[str, float]()
    for name in (BLOCK, BLOCK + FIRST):
        with whole_model_on(stream, name, feeds, 0) as raced:
            tried = raced()[1]
            ran = [us for us in tried.values() if isinstance(us, float)]
            times[name] = min(ran, default=float("inf"))
            print(f"PyTorch, {name}: {tried}", flush=True)
    return min(times, key=lambda name: times[name])


def _peers(target: Target) -> list[Source]:
    return [
        Source(f"{io} inputs", target.build("fp16", io).SerializeToString())
        for io in ("fp16", "fp32")
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.set_defaults(fuse="all")
    add_options(parser, "nnunet")
    parser.add_argument("--side", type=int, default=Target().side, help="of the volume")
    parser.add_argument("--compile-within", type=time_argument, default="3m", metavar="TIME")
    parser.add_argument("--tune", action="store_true", help="measure kernels")
    parser.add_argument("--budget", type=time_argument, help="with --tune")
    parser.add_argument("--quick", action="store_true", help="few runs, no torch.compile")
    return parser


if __name__ == "__main__":
    sys.exit(main())
