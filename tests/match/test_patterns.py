"""Patterns by operator: those of every op and of every epilogue step, and ops know nothing of the
matcher."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

from onnxbolt.domains import INTERNAL
from onnxbolt.epilogues import registered
from onnxbolt.match.patterns import anchors, steps
from onnxbolt.ops import OPS
from onnxbolt.patterns.epilogue import patterns_of


def test_each_op_begins_at_the_nodes_that_it_says() -> None:
    stated = [
        (pattern.domain, operator)
        for op in OPS.values()
        for pattern in op.anchors()
        for operator in pattern.ops
    ]
    assert sorted(stated) == sorted(place for place, found in anchors().items() for _ in found)
    # no two ops begin at one operator, except where the norm behind it decides: at a residual's
    # addition, at class tokens in front of others, and at embeddings; and at products, where the
    # second operand decides: another tensor, or codes; and at norms, which are those of heads where
    # these are parts of rows, and modulated ones where vectors of sequences scale and shift them:
    # these begin at a gate's product as well
    twice = {place for place, count in Counter(stated).items() if count > 1}
    norms = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
    assert twice == {
        *(("", op) for op in ("Add", "Concat", "Gather", "Conv", "MatMul", "Mul", *norms)),
        *((INTERNAL, op) for op in norms),
    }


def test_epilogues_continue_with_steps_and_further_products() -> None:
    of_entries = [pattern for entry in registered() for pattern in patterns_of(entry)]
    of_ops = [pattern for op in OPS.values() for pattern in op.continuations()]
    places = {(p.domain, operator) for p in (*of_entries, *of_ops) for operator in p.ops}
    listed = [pattern for place in places for pattern in steps(*place)]
    assert len(listed) == sum(len(pattern.ops) for pattern in (*of_entries, *of_ops))
    for pattern in of_ops:
        assert steps(pattern.domain, pattern.ops[0])[-1].ops == pattern.ops


def test_ops_import_no_stage_above_them() -> None:
    code = """
import sys
import onnxbolt.ops
print([name for name in sys.modules if name.startswith(("onnxbolt.match", "onnxbolt.layout"))])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
