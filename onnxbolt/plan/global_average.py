"""Global average poolings in the epilogue of the convolution before them (step Mean), whose kernel
then writes the means alone.

Times decide (plan/mergers.py); that of the pooling is always predicted.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import onnx_graphsurgeon as gs

from onnxbolt.archs import get
from onnxbolt.candidates import Candidate, Link, Refusal
from onnxbolt.epilogues import CASTS, MEAN, PRODUCT, Step
from onnxbolt.families import most_mean_pixels
from onnxbolt.graph.edit import is_mean, sole_use
from onnxbolt.graph.skipping import is_skipped
from onnxbolt.match.matcher import links_over
from onnxbolt.onnxruntime_time import pool_us
from onnxbolt.plan.mergers import NOT_FUSED, Merger
from onnxbolt.plan.problems import problem_of
from onnxbolt.plan.ranges import Point

_REMEDY = (
    f"only sm_90a has kernels that average images: of up to {most_mean_pixels()} pixels,"
    " with channels of a multiple of 16 bytes"
)


def mergers(
    graph: gs.Graph, candidates: Sequence[Candidate], archs: Sequence[int], at: Point
) -> Iterator[Merger | Refusal]:
    """Each candidate with the pooling behind it, or why no kernel computes both."""
    for alone in candidates:
        together = with_pooling(graph, alone)
        if together is None:
            continue
        pooling = together.links[len(alone.links)].nodes[0]
        pixels, channels = pooling.inputs[0].shape[2:], alone.widths[-1]
        merger = Merger((together,), (alone,), pooling, NOT_FUSED, "", _REMEDY)
        if any(not isinstance(size, int) for size in pixels):
            yield merger.refusal("because its images have no fixed size", _REMEDY)
            continue
        count, problem = math.prod(pixels), problem_of(alone, None, at)
        read = problem.rows * channels
        yield dataclasses.replace(
            merger,
            sizes=f"{count} pixels of {channels} channels",
            ort_us=sum(pool_us(read, read // count, problem.dtype, get(arch)) for arch in archs),
        )


def with_pooling(graph: gs.Graph, candidate: Candidate) -> Candidate | None:
    """`candidate` with the global average pooling that alone reads its result, and with a Cast
    behind the pooling; None if there is no such pooling."""
    node = sole_use(graph, candidate.output) if candidate.anchor.op.takes_mean else None
    if node is None or not is_mean(node) or len(candidate.output.shape or ()) != 4:
        return None
    if is_skipped(graph, node):
        return None
    if any(step == PRODUCT or step in CASTS.values() for step in candidate.steps):
        return None
    links = (*candidate.links, Link(Step(MEAN), None, (node,), node.outputs[0]))
    behind = sole_use(graph, node.outputs[0])
    if behind is not None and behind.op == "Cast" and not is_skipped(graph, behind):
        links += links_over(behind, node.outputs[0], candidate.anchor, links).links
    found = dataclasses.replace(candidate, links=links, layers=()).prefix(len(links))
    return (
        dataclasses.replace(found, layers=(candidate,))
        if found is not None and MEAN in found.steps
        else None
    )
