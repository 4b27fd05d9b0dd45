"""The report of a run: fused nodes and their predicted times, refusals and their reasons, and what
stayed in fp32."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

import onnx_graphsurgeon as gs
from onnx import ModelProto, NodeProto, helper

from onnxbolt import archs as known_archs
from onnxbolt.candidates import Candidate, Refusal
from onnxbolt.codegen.render import Instance
from onnxbolt.graph.bodies import Left, located
from onnxbolt.graph.exporter import node_proto
from onnxbolt.graph.order import in_order
from onnxbolt.graph.shapes import Shape
from onnxbolt.inspection import describe
from onnxbolt.library import Manifest
from onnxbolt.ops.functions import DOMAIN
from onnxbolt.opspec import configs_of_node, stands_for
from onnxbolt.options import Options
from onnxbolt.plan.choose import Plan, Prediction, Totals
from onnxbolt.plan.ranges import Point
from onnxbolt.plan.whole import other_times
from onnxbolt.precision import Kept
from onnxbolt.report import files, render
from onnxbolt.report.blocks import Block, blocks_of, drawing
from onnxbolt.report.coverage import coverage, left_out, nothing_fused
from onnxbolt.report.data import Fused, ReportData
from onnxbolt.report.page import page
from onnxbolt.report.products import Product, Sized

__all__ = ["Account", "Fused", "Report"]


@dataclass(frozen=True)
class Report(ReportData):
    """The report of a run: made from what the stages hand over, and written as text, JSON and
    Markdown."""

    @classmethod
    def of(
        cls,
        accounts: Sequence[Account],
        manifest: Manifest,
        options: Options,
        archs: Sequence[int],
    ) -> Report:
        """The report of an optimized model, from the accounts of its main graph and of its
        bodies."""
        work = [product for account in accounts for product in account.work]
        # a layout conversion replaces no source node, so it is not listed
        fused = tuple(row for account in accounts for row in account.fused if row.source_nodes)
        sources = {located(source, node.body) for node in fused for source in node.source_nodes}
        refused = [refusal for account in accounts for refusal in account.refusals]
        refusals = (*refused, *left_out(work, sources, refused))
        why = "" if fused else nothing_fused(work, refusals)
        return cls(
            options.precision,
            options.fuse,
            tuple(archs),
            fused,
            refusals,
            tuple(kept for account in accounts for kept in account.kept),
            tuple(line for account in accounts for line in account.changes),
            tuple(name for account in accounts for name in account.shared_weights),
            coverage(work, sources),
            why,
            manifest.digest,
            regions=tuple(verdict for account in accounts for verdict in account.chosen.verdicts),
            planning=_together([account.chosen.totals for account in accounts]),
            strict=options.strict,
            before=drawing([account.before for account in accounts]),
            after=drawing([account.after(archs) for account in accounts]),
            machine=next(filter(None, (account.chosen.used.machine for account in accounts)), None),
            gpus=tuple(known_archs.get(number).gpu for number in archs),
        )

    @classmethod
    def unchanged(cls, reason: str, archs: Sequence[int]) -> Report:
        """The report of a model that was written unchanged."""
        return cls(
            "keep",
            "winning",
            tuple(archs),
            (),
            (),
            (),
            (),
            (),
            None,
            reason,
            "",
            passed_through=reason,
        )

    def with_kernels(
        self, accounts: Sequence[Account], manifest: Manifest, names: Mapping[Instance, str]
    ) -> Report:
        """The report with the `names` of kernels that a library has."""
        ops = {op.name: op for op in manifest.ops}
        found = {
            (node.name, account.body): tuple(
                names.get(ops[node.op_type].instance(config), "")
                for config in configs_of_node(node)
            )
            for account in accounts
            for node in account.nodes
            if node.op_type in ops
        }
        fused = (replace(row, kernels=found.get((row.name, row.body), ())) for row in self.fused)
        return replace(self, fused=tuple(fused))

    def text(self) -> str:
        """The report for a terminal, grouped by op type and reason. The last line of a verified
        model's is PASSED or FAILED."""
        return render.text(self)

    def json(self) -> str:
        """The whole report as JSON, keys sorted."""
        return render.as_json(self)

    def markdown(self) -> str:
        """The whole report as Markdown tables."""
        return render.markdown(self)

    def html(self) -> str:
        """The report as one page that needs no network: the one of the report's JSON."""
        return page(json.loads(self.json()))

    def save(self, path: Path | str) -> None:
        """Write JSON, Markdown or HTML, depending on the suffix; no partial file is left on
        errors."""
        files.save(self, Path(path))


@dataclass(frozen=True)
class Account:
    """The results of all stages for one graph: the main one, or that of a body."""

    original: ModelProto
    graph: gs.Graph  # with its fused nodes
    chosen: Plan
    kept: Sequence[Kept]
    changes: Sequence[str]
    shared_weights: Sequence[str]
    point: Mapping[str, Sequence[int | str | None]]  # the inputs' shapes, to count FLOPs at
    at: Point  # the sizes to predict times at
    left: Sequence[Left] = ()  # bodies that are not optimized
    body: str = ""
    quantized: Sequence[Refusal] = ()
    # the source nodes that each node stands for, as planning had them, by name
    provenance: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def _source(self) -> Sized:
        """The original with its shapes."""
        return Sized.of(self.original, self.point)

    @cached_property
    def work(self) -> list[Product]:
        """The products of the graph, and those of its bodies that have no account."""
        reasons = {left.place: left.reason for left in self.left}
        return [
            replace(
                product,
                body=", in ".join(filter(None, [product.body, self.body])),
                left=f"{product.body}, because {reasons[product.body]}" if product.body else "",
            )
            for product in self._source.products()
            if not product.body or product.body in reasons
        ]

    @cached_property
    def refusals(self) -> list[Refusal]:
        """The refusals of planning, and those of products of 8 bits, which planning does not
        know."""
        known = {refusal.node for refusal in self.quantized}
        others = [refusal for refusal in self.chosen.refusals if refusal.node not in known]
        return [
            replace(named, body=self.body)
            for refusal in (*others, *self.quantized)
            for named in self._of_source(refusal)
        ]

    def _of_source(self, refusal: Refusal) -> list[Refusal]:
        """The refusal of a node that a stage made (the MatMul of a Gemm, say) as one of each of the
        source's products that it stands for and that no fused node replaces; the refusal itself
        where there are none."""
        if refusal.node in self._left:
            return [refusal]
        found = [name for name in self.provenance.get(refusal.node, ()) if name in self._left]
        return [replace(refusal, node=name, op=self._left[name]) for name in found] or [refusal]

    @cached_property
    def _left(self) -> dict[str, str]:
        """The operators of the products that no fused node replaces, by name."""
        fused = {source for row in self.fused for source in row.source_nodes}
        own = (product for product in self.work if not product.left)
        return {product.node: product.op for product in own if product.node not in fused}

    @cached_property
    def nodes(self) -> list[NodeProto]:
        """The nodes of our domain."""
        return [node_proto(node) for node in in_order(self.graph) if node.domain == DOMAIN]

    @cached_property
    def fused(self) -> list[Fused]:
        """The fused nodes."""
        return list(self._fused())

    @property
    def predictions(self) -> dict[str, Sequence[Prediction]]:
        """The predictions of fused nodes, by name."""
        return {node.name: node.predicted for node in self.fused if node.predicted}

    def others(self, archs: Sequence[int]) -> dict[str, tuple[float, ...]]:
        """The times of the nodes without predictions."""
        return other_times(self.graph, self.predictions.keys(), archs, self.at)

    @property
    def before(self) -> list[Block]:
        """The nodes of the original."""
        source = self._source
        return blocks_of(
            source.graph, lambda tensor: source.shapes.get(tensor.name, []), body=self.body
        )

    def after(self, archs: Sequence[int]) -> list[Block]:
        """The nodes of the graph, with the times of those that are not fused."""
        others = self.others(archs)
        return blocks_of(
            self.graph, self._shape, lambda node: others.get(node.name, ()), _provenance, self.body
        )

    def _shape(self, tensor: gs.Tensor) -> Shape:
        return list(self.at.shape(tensor) or ())

    def _fused(self) -> Iterator[Fused]:
        flops = {product.node: product.flops for product in self.work if not product.left}
        candidates = {(c.rule, _sources(c)): c for c in self.chosen.candidates}
        for node in self.nodes:
            yield replace(_fused(node, candidates, self.chosen, flops), body=self.body)


def _together(totals: Sequence[Totals | None]) -> Totals | None:
    """The sums of the totals of several graphs; None if a lock file decided."""
    known = [asdict(each) for each in totals if each is not None]
    return (
        Totals(**{name: sum(each[name] for each in known) for name in known[0]}) if known else None
    )


def _provenance(node: gs.Node) -> tuple[str, ...]:
    return () if node.domain == DOMAIN else tuple(node.provenance)


def _sources(candidate: Candidate) -> tuple[str, ...]:
    return tuple(name for node in candidate.nodes for name in node.provenance)


def _fused(
    node: NodeProto,
    candidates: Mapping[tuple[str, tuple[str, ...]], Candidate],
    chosen: Plan,
    flops: Mapping[str, int],
) -> Fused:
    values = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    rule, sources = (
        values["rule"].decode(),
        tuple(name.decode() for name in values.get("source_nodes", ())),
    )
    row = Fused(node.name, node.op_type, stands_for(values), rule, sources)
    # if the node also replaces a Concat, that follows the candidate's own sources
    starts = (sources[:count] for count in range(len(sources), 0, -1))
    candidate = next(
        (candidates[rule, start] for start in starts if (rule, start) in candidates), None
    )
    if candidate is None:  # a pooling
        return row
    key = candidate.anchor.node
    configs = tuple(describe(config) for config in configs_of_node(node))
    work = sum(flops.get(source, 0) for source in sources)
    return replace(row, flops=work, configs=configs, predicted=tuple(chosen.predictions[key]))
