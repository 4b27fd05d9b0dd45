"""Which share of the products of the exported models is fused, and what keeps their layers apart.

    python -m tests.zoo.coverage [--only PATTERN]... [--precision fp16] [--verify]

For each model of tests/zoo/exports: the share of the FLOPs of its products that fused nodes do,
each kind of product that is not fused with its reason, and the nodes between fused nodes that stay
with ONNX Runtime, by the time that the cost model predicts for them on an H100.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import tempfile
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import onnx
from onnx import ModelProto, NodeProto

import onnxbolt
from onnxbolt.archs import get
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer, infer_at
from onnxbolt.graph.sizes import Sizes
from onnxbolt.ops.functions import DOMAIN
from onnxbolt.plan.node_times import node_us
from onnxbolt.plan.ranges import Point
from onnxbolt.report import Report
from onnxbolt.report.products import Product, products
from onnxbolt.verify.feeds import shapes_for
from tests.zoo.recognition import OVERLOOKED
from tests.zoo.stored import load, names, shapes

ARCH = 90
# these have no kernels that could fuse them
UNCOUNTED = ("DeformConv", "GRU", "LSTM", "RNN")
# products are counted at these, where no sizes are stored
USUAL = Sizes(1, (224, 224), 128)


class Studied:
    """A model, what `optimize` made of it, and its report."""

    def __init__(self, name: str, precision: str = "fp16", verify: bool = False) -> None:
        self.source = load(name)
        self.at = shapes(name)
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out.onnx"
            try:
                self.report: Report = onnxbolt.optimize(
                    self.source,
                    out,
                    precision=precision,
                    fuse="all",
                    archs=(f"sm_{ARCH}a",),
                    library=False,
                    verify=verify,
                    keep_failed=True,
                    min_shapes=self.at,
                    opt_shapes=self.at,
                    max_shapes=self.at,
                )
            except onnxbolt.AccuracyError as error:
                self.report = error.report
            self.model: ModelProto = onnx.load(out)

    def products(self) -> list[tuple[Product, str]]:
        """Each product that counts, and why it is not fused: "" if it is."""
        fused = {name for node in self.report.fused for name in node.source_nodes}
        refused = {kept.node: f"it stays in fp32: {kept.reason}" for kept in self.report.kept}
        for refusal in self.report.refusals:
            refused.setdefault(refusal.node, refusal.reason)
        return [
            (product, "" if product.node in fused else refused.get(product.node, OVERLOOKED))
            for product in products(self.source, self.at or shapes_for(self.source, USUAL))
            if product.op not in UNCOUNTED
        ]

    def between(self) -> Iterator[tuple[NodeProto, float]]:
        """Nodes that stay with ONNX Runtime on a way from one fused node to another, with their
        predicted microseconds."""
        nodes = list(self.model.graph.node)
        after = _reached(nodes, lambda node: node.input, lambda node: node.output)
        before = _reached(nodes[::-1], lambda node: node.output, lambda node: node.input)
        graph = import_model(self.model)
        infer(graph)
        at = Point(infer_at(graph, [self.at])[0]) if self.at else Point()
        for node in graph.nodes:
            name = node.outputs[0].name
            if name in after & before and node.domain != DOMAIN:
                yield node, node_us(node, get(ARCH), at)


def _reached(
    nodes: Sequence[NodeProto],
    reads: Callable[[NodeProto], Iterable[str]],
    writes: Callable[[NodeProto], Iterable[str]],
) -> set[str]:
    """The first outputs of nodes that lie behind a fused node, in the order of `nodes`."""
    tensors, found = set[str](), set[str]()
    for node in nodes:
        if behind := not tensors.isdisjoint(reads(node)):
            found.add(node.output[0])
        if behind or node.domain == DOMAIN:
            tensors.update(writes(node))
    return found


def lines(name: str, studied: Studied) -> Iterator[str]:
    """The share, the products that are left, and the nodes between fused ones."""
    work = studied.products()
    total = sum(product.flops for product, _ in work)
    left, first = Counter[tuple[str, str]](), dict[tuple[str, str], str]()
    for product, reason in work:
        if reason:
            key = (product.op, reason)
            left[key] += product.flops
            first.setdefault(key, product.node)
    share = 1 - sum(left.values()) / total if total else 1
    passed = studied.report.verification and ("PASSED" if studied.report.passed else "FAILED")
    whole = studied.report.whole[0] if studied.report.whole else None
    times = f", {whole.ours_us:.0f} us against {whole.ort_us:.0f}" if whole else ""
    yield f"{name}: {share:.2%} of {total / 1e9:.3g} GFLOPs fused{times} {passed or ''}"
    found = studied.report.verification
    for row in found.failures if found else ():
        yield f"    FAILED {row.kind} {row.name}: {row.reason}"
    for key, flops in left.most_common():
        yield f"    left {flops / total:7.2%} {key[0]} {first[key]}: {key[1]}"
    us, counts = defaultdict[str, float](float), Counter[str]()
    for node, time in studied.between():
        if time:
            us[node.op] += time
            counts[node.op] += 1
    for op in sorted(us, key=us.__getitem__, reverse=True):
        yield f"    between {us[op]:7.1f} us {counts[op]:4} {op}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.coverage", description=__doc__)
    parser.add_argument("--only", action="append", help="a pattern of names; all without")
    parser.add_argument("--precision", default="fp16", choices=("fp16", "bf16", "keep"))
    parser.add_argument("--verify", action="store_true", help="compare with the original")
    chosen = parser.parse_args(arguments)
    failures = 0
    for name in names():
        if any(fnmatch.fnmatch(name, pattern) for pattern in chosen.only or ["*"]):
            try:
                studied = Studied(name, chosen.precision, chosen.verify)
            except Exception:  # the others go on
                failures += 1
                print(f"{name}: failed", flush=True)
                traceback.print_exc()
            else:
                failures += not studied.report.passed
                print("\n".join(lines(name, studied)), flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
