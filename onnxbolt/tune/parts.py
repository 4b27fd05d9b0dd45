"""Ways to fuse a region in part that are worth measuring: those predicted to be about as fast, at
least, as fusing the whole region or nothing of it.

The cost of a layout conversion grows with its tensor. The region's borders have conversions anyway;
a cut adds new ones. A part therefore pays if it ends at a small tensor, or if it leaves out nodes
that ONNX Runtime runs well.
"""

from __future__ import annotations

import math

from onnxbolt.archs import ARCHS
from onnxbolt.dtypes import DType
from onnxbolt.measurements.timings import Timings
from onnxbolt.onnxruntime_time import transpose_us
from onnxbolt.plan.conversions import conversion_us
from onnxbolt.plan.cost import fused_us, ort_us, predict
from onnxbolt.plan.problems import problem_of
from onnxbolt.plan.regions import Part, Region

# the most of each kind, since sessions of a large model take seconds
_MOST_CUTS, _MOST_WITHOUT = 3, 3
# parts predicted slower than this times the better of fusing everything and nothing are not
# measured
_HOPELESS = 1.1


def promising(region: Region, timings: Timings) -> list[Part]:
    """Parts to measure, the most promising first."""
    if not region.parts:
        return []
    total = _Prediction(region, timings)
    limit = _HOPELESS * min(total.of_all, total.of_none)
    ranked = sorted(
        (us, part.kind, part.left_out, part)
        for part in region.parts
        if (us := total.of(part)) <= limit
    )
    parts = [part for *_, part in ranked]
    cuts, without = ([p for p in parts if bool(p.cut) is is_cut] for is_cut in (True, False))
    chosen = {*cuts[:_MOST_CUTS], *without[:_MOST_WITHOUT]}
    return [part for part in parts if part in chosen]


class _Prediction:
    """Microseconds of the region and its parts: measured times of kernels if known, otherwise
    predictions."""

    def __init__(self, region: Region, timings: Timings) -> None:
        arch = ARCHS[region.arch]
        self._region = region
        self._theirs = [ort_us(problem_of(c, None, region.at), arch) for c in region.candidates]
        self._ours = []
        for problem in region.problems:
            choice = timings.choice(problem, region.arch)
            known = choice.us if choice and choice.measured else None
            self._ours.append(
                known
                or (
                    fused_us(problem, choice.config, arch)
                    if choice
                    else predict(problem, region.arch)[1]
                )
            )
        self._borders = [
            (region.place(tensor), conversion_us(tensor, form, region))
            for tensor, form in region.conversions
        ]

    @property
    def of_none(self) -> float:
        return sum(self._theirs)

    @property
    def of_all(self) -> float:
        return sum(self._ours) + sum(us for _, us in self._borders)

    def of(self, part: Part) -> float:
        """Microseconds of the fused kernels, ONNX Runtime's kernels, the region's remaining border
        conversions, and the conversions at the cut; each node left out by itself adds two."""
        left = set(part.left_out)
        kernels = sum(self._theirs[i] if i in left else us for i, us in enumerate(self._ours))
        borders = sum(us for place, us in self._borders if place not in left)
        crossing = self._cut_us(part.cut) if part.cut else sum(self._around_us(i) for i in left)
        return kernels + borders + crossing

    def _cut_us(self, cut: int) -> float:
        region = self._region
        return sum(
            transpose_us(
                math.prod(region.at.sizes(t)), DType.of(t.dtype) or DType.F32, ARCHS[region.arch]
            )
            for t in region.crossing(cut)
        )

    def _around_us(self, place: int) -> float:
        region, candidate = self._region, self._region.candidates[place]
        return sum(
            transpose_us(math.prod(region.at.sizes(t)), candidate.anchor.dtype, ARCHS[region.arch])
            for t in (candidate.anchor.x, candidate.output)
        )
