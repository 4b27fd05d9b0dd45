"""The report of a run: fused nodes and their predicted times, refusals and their reasons, and what
stayed in fp32."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from onnx import ModelProto, NodeProto, helper

from onnxbolt.candidates import Candidate
from onnxbolt.inspection import describe
from onnxbolt.library import Manifest
from onnxbolt.ops.functions import DOMAIN
from onnxbolt.opspec import configs_of_node, stands_for
from onnxbolt.options import Options
from onnxbolt.precision import Kept
from onnxbolt.report import files, render
from onnxbolt.report.coverage import coverage, left_out, nothing_fused
from onnxbolt.report.data import Fused, ReportData
from onnxbolt.report.products import products

if TYPE_CHECKING:
    from onnxbolt.plan.choose import Plan

__all__ = ["Fused", "Report"]


@dataclass(frozen=True)
class Report(ReportData):
    """The report of a run: made from what the stages hand over, and written as text, JSON and
    Markdown."""

    @classmethod
    def of(
        cls,
        original: ModelProto,
        model: ModelProto,
        manifest: Manifest,
        chosen: Plan,
        kept: Sequence[Kept],
        changes: Sequence[str],
        shared_weights: Sequence[str],
        options: Options,
        archs: Sequence[int],
        point: Mapping[str, Sequence[int | str | None]],
    ) -> Report:
        """The report of an optimized model, from the results of the stages; FLOPs are counted at
        `point`, the shapes of graph inputs by name."""
        work = products(original, point)
        flops = {product.node: product.flops for product in work if not product.body}
        candidates = {(c.rule, _sources(c)): c for c in chosen.candidates}
        rows = (
            _fused(node, candidates, chosen, flops)
            for node in model.graph.node
            if node.domain == DOMAIN
        )
        # a layout conversion replaces no source node, so it is not listed
        fused = tuple(row for row in rows if row.source_nodes)
        sources = {source for node in fused for source in node.source_nodes}
        refusals = (*chosen.refusals, *left_out(work, sources, chosen.refusals))
        why = "" if fused else nothing_fused(work, refusals)
        return cls(
            options.precision,
            options.fuse,
            tuple(archs),
            fused,
            refusals,
            tuple(kept),
            tuple(changes),
            tuple(shared_weights),
            coverage(work, sources),
            why,
            manifest.digest,
            regions=chosen.verdicts,
            planning=chosen.totals,
            strict=options.strict,
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

    def save(self, path: Path | str) -> None:
        """Write JSON or Markdown, depending on the suffix; no partial file is left on errors."""
        files.save(self, Path(path))


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
    return dataclasses.replace(
        row, flops=work, configs=configs, predicted=tuple(chosen.predictions[key])
    )
