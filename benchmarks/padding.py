"""Bolt's table 3: convolutions whose input channels are no multiple of 8, as they are and padded,
against cuDNN, in fp16, in one run.

    # all of SHAPES; writes results/padding-<gpu>.json
    python -m benchmarks.padding

Unpadded kernels read two channels at a time, padded ones eight. A padded convolution counts with
the kernel that pads, PyTorch's copy into wider rows, on operands rotated past the L2 cache: what is
faster, unpadded or padded, is ours. cuDNN's side has the same choice. None has an epilogue.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks import conv, peers
from benchmarks.common import Row
from benchmarks.racing import (
    Entry,
    Tuned,
    against,
    fastest,
    medians,
    parser,
    run,
    serial,
    serial_of,
    take_turns,
)
from onnxbolt.dtypes import DType
from onnxbolt.plan.cost import floor_us
from onnxbolt.problems import ConvProblem
from onnxbolt.tune.sessions import Sample


def _convolution(
    n: int, h: int, w: int, c: int, k: int, window: tuple[int, int], pads: tuple[int, int]
) -> ConvProblem:
    (r, s), (rows, columns) = window, pads
    p, q = h + 2 * rows - r + 1, w + 2 * columns - s + 1
    return ConvProblem(
        n,
        h,
        w,
        c,
        k,
        r,
        s,
        p,
        q,
        (rows, columns, rows, columns),
        (1, 1),
        (1, 1),
        1,
        DType.F16,
        DType.F16,
        (),
    )


SHAPES = (
    _convolution(32, 20, 26, 46, 32, (3, 3), (1, 1)),
    _convolution(32, 20, 26, 46, 32, (5, 5), (2, 2)),
    _convolution(128, 14, 19, 46, 32, (5, 7), (0, 0)),
    _convolution(288, 11, 15, 46, 32, (5, 7), (0, 0)),
    _convolution(32, 20, 26, 174, 64, (3, 3), (1, 1)),
    _convolution(32, 20, 26, 174, 64, (5, 5), (2, 2)),
)


def main(arguments: Sequence[str] | None = None) -> int:
    return run("padding", entries(), parser(__doc__ or "").parse_args(arguments))


def entries() -> list[Entry]:
    return [Entry(conv.name(p), p.n, (p, padded(p)), partial(_measure, p)) for p in SHAPES]


def padded(problem: ConvProblem) -> ConvProblem:
    """The tensor with channels of zeros added up to a multiple of 8."""
    return dataclasses.replace(problem, c=problem.c + -problem.c % problem.dtype.alignment)


def _measure(problem: ConvProblem, tuned: Tuned) -> Row:
    if not peers.pytorch():
        raise RuntimeError("PyTorch, whose copy is the padding, is missing")
    wide = padded(problem)
    kernels = {"unpadded": tuned.kernel(problem), "padded": tuned.kernel(wide)}
    theirs = {
        "cuDNN unpadded": peers.convolution(problem),
        "cuDNN padded": peers.convolution(wide),
        "padding": peers.channel_padding(problem, wide.c),
    }
    ours = {kind: side.measure for kind, side in kernels.items()} | serial_of(
        {f"{kind}, serial": side for kind, side in kernels.items()}
    )
    samples = take_turns(ours | {kind: side.measure() for kind, side in theirs.items()})
    return _row(problem, samples, tuned, {kind: kernel.facts for kind, kernel in kernels.items()})


def _row(
    problem: ConvProblem, samples: dict[str, Sample], tuned: Tuned, facts: dict[str, dict[str, Any]]
) -> Row:
    padding = samples["padding"]
    ours = {"unpadded": samples["unpadded"], "padded": _one_after_other(padding, samples["padded"])}
    cudnn = {
        "cuDNN unpadded": samples["cuDNN unpadded"],
        "cuDNN padded": _one_after_other(padding, samples["cuDNN padded"]),
    }
    mine, peer, with_padding = fastest(ours), fastest(cudnn), ours["padded"].median
    values = {
        **tuned.notes(problem),
        "unpadded_us": round(samples["unpadded"].median, 3),
        "padded_us": round(samples["padded"].median, 3),
        "padding_us": round(padding.median, 3),
        "padding_share": round(padding.median / with_padding, 4),
        "gain": round(samples["unpadded"].median / with_padding, 4),
        "chosen": mine,
        "tried": medians(cudnn),
        "unpadded_config": facts["unpadded"]["config"],
        "padded_config": facts["padded"]["config"],
    }
    if "padded, serial" in samples:
        alone = {
            "unpadded": samples["unpadded, serial"],
            "padded": _one_after_other(padding, samples["padded, serial"]),
        }
        values |= serial(alone[fastest(alone)], cudnn[peer].median)
    fields = against(ours[mine], cudnn[peer].median) | {"peer": peers.library(peer)}
    floor = round(floor_us(problem, tuned.arch), 3)
    return Row(
        conv.name(problem),
        problem.n,
        "fp16",
        floor_us=floor,
        values=values,
        **fields,
        **facts[mine],
    )


def _one_after_other(first: Sample, second: Sample) -> Sample:
    """Measure the operations in turn, round by round."""
    return Sample(tuple(a + b for a, b in zip(first.times, second.times, strict=True)))


if __name__ == "__main__":
    sys.exit(main())
