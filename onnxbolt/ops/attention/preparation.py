"""Rewrites of the canonical graph by which more attentions are recognized.

An attention may need several of them: factors of heads and several masks, for instance. One that is
not recognized behind them stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import onnx_graphsurgeon as gs

from onnxbolt.graph.snapshot import Snapshot
from onnxbolt.ops.attention import (
    channels_first,
    folds,
    forms,
    grids,
    head_factors,
    mask_scales,
    row_maxima,
    sequence_first,
    sums,
    turned_values,
)
from onnxbolt.ops.base import FusedOp

_Rewrite = Callable[[FusedOp, gs.Graph, Iterable[gs.Node]], list[gs.Node]]
# each rewrites some of the given attentions and returns these; True: it takes operators that are
# attention by themselves as well as softmaxes
_REWRITES: tuple[tuple[str, _Rewrite, bool], ...] = (
    # the next one looks for a product of probabilities and values
    ("probabilities multiplied by values", turned_values.turn, False),
    ("images divided into heads in NHWC", channels_first.turn, False),
    # masks do not concern it, and some are divided into batch and heads behind it
    ("batch moved in front of positions", sequence_first.turn, True),
    ("maxima of rows no longer subtracted", row_maxima.drop, False),
    ("factors of heads moved to queries", head_factors.move, False),
    ("biases of grids added to scores", grids.flatten, False),
    ("masks scaled before they are added", mask_scales.move, False),
    ("several masks joined to one", sums.join, False),
    ("masks divided into batch and heads", folds.divide, False),
    # again: one of several masks may have been divided since
    ("several masks joined to one", sums.join, False),
)


def prepare(op: FusedOp, graph: gs.Graph) -> Sequence[str]:
    """Rewrite the attentions that `op` then recognizes; a line for the report for each rewrite."""
    softmaxes = [
        node for node in graph.nodes if forms.is_softmax(node) or turned_values.weighs(graph, node)
    ]
    attentions = [*softmaxes, *(node for node in graph.nodes if forms.is_operator(node))]
    before = Snapshot(graph)
    while True:
        changed = dict[str, list[gs.Node]]()
        for words, rewrite, operators in _REWRITES:
            given = attentions if operators else softmaxes
            changed.setdefault(words, []).extend(rewrite(op, graph, given))
        found = dict.fromkeys(node for nodes in changed.values() for node in nodes)
        lost = {each for each in found if not isinstance(forms.match(op, each), tuple)}
        if not lost:
            return [f"attention: {len(n)} ({words})" for words, n in changed.items() if n]
        before.restore(graph)
        softmaxes = [each for each in softmaxes if each not in lost]
        attentions = [each for each in attentions if each not in lost]
