"""One form for all quantized models: QuantizeLinear and DequantizeLinear around operators on
values, as late and as early as is exact, with constant codes and without repetitions.

`canonicalize` runs these passes where kernels read codes. Without such kernels models are written
as before, and the passes make the copy in which quantized products are recognized
(docs/decisions/quantized.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx_graphsurgeon as gs

from onnxbolt import families
from onnxbolt.canonicalize import constant_fold
from onnxbolt.canonicalize.quantized import (
    batchnorms,
    clips,
    constants,
    gemms,
    merges,
    moves,
    operators,
)
from onnxbolt.canonicalize.quantized.scaling import DEQUANTIZE, QUANTIZE
from onnxbolt.domains import CONTRIB
from onnxbolt.graph import promises
from onnxbolt.graph.edit import prune
from onnxbolt.graph.promises import stage
from onnxbolt.graph.shapes import infer

PASSES: list[tuple[Callable[[gs.Graph], int], str]] = [
    (operators.run, "operators on codes written between DequantizeLinear and QuantizeLinear"),
    (constants.run, "quantized constants computed"),
    (batchnorms.run, "BatchNormalization folded into scales of codes"),
    (gemms.run, "Gemm of constant codes written as MatMul and Add"),
    # codes behind a DequantizeLinear that moved, and Clips of codes
    (constant_fold.run, "constant expressions computed"),
    (clips.run, "Clips of codes moved in front of QuantizeLinear"),
    (moves.run, "DequantizeLinear moved behind, QuantizeLinear in front of what moves values"),
    (merges.run, "QuantizeLinear and DequantizeLinear that repeat others removed"),
]
_MOST_ROUNDS = 10
_WORDS = ("QLinear", "QGemm", "Integer", QUANTIZE, DEQUANTIZE)  # parts of such operators' names


def is_quantized(graph: gs.Graph) -> bool:
    """True if the graph has operators that make or read codes."""
    return any(map(is_on_codes, graph.nodes))


def is_on_codes(node: gs.Node) -> bool:
    """True for an operator that makes or reads codes."""
    return node.domain in (None, "", CONTRIB) and any(word in node.op for word in _WORDS)


def has_kernels(graph: gs.Graph) -> bool:
    """True if planning may choose kernels that read codes, on all architectures that the graph is
    written for."""
    return families.multiplies_codes(graph.archs)


def run(graph: gs.Graph) -> int:
    """Run each pass once on a quantized graph where kernels read codes; returns how many changes
    they made."""
    return sum(_passed(graph)) if is_quantized(graph) and has_kernels(graph) else 0


def merge(graph: gs.Graph) -> None:
    """Let readers that no kernel took read one DequantizeLinear again."""
    if has_kernels(graph):
        merges.run(graph)


def _passed(graph: gs.Graph) -> Iterator[int]:
    count = 0
    for each, _ in PASSES:
        if count:
            infer(graph)
        count = each(graph)
        yield count


@stage(requires=promises.SOUND, ensures=promises.KEPT)
def rewrite(graph: gs.Graph) -> list[str]:
    """Run all passes on the graph, in place, until none finds anything to do; returns a line for
    each that changed something."""
    log, count = list[str](), 1
    for _ in range(_MOST_ROUNDS):
        before = len(log)
        for run, effect in PASSES:
            if count:
                infer(graph)
            count = run(graph)
            if count:
                log.append(f"{run.__module__.rpartition('.')[2]}: {count} ({effect})")
        if len(log) == before:
            break
    prune(graph)
    infer(graph)
    return log
