"""The report of a run as data: fused nodes and their predicted times, refusals and their reasons,
and what stayed in fp32."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from onnx import ModelProto, NodeProto, helper

from onnxbolt.candidates import Candidate, Refusal
from onnxbolt.inspection import describe
from onnxbolt.library import Manifest
from onnxbolt.ops.functions import DOMAIN
from onnxbolt.opspec import configs_of_node
from onnxbolt.options import Options
from onnxbolt.precision import Kept
from onnxbolt.report import files, render
from onnxbolt.report.coverage import coverage, left_out, nothing_fused
from onnxbolt.report.products import products
from onnxbolt.spelling import option
from onnxbolt.verify import VerifyResult
from onnxbolt.verify.result import NOT_FINITE
from onnxbolt.version import __version__

if TYPE_CHECKING:
    from onnxbolt.plan.choose import Plan, Prediction
    from onnxbolt.plan.verdicts import Verdict
    from onnxbolt.plan.whole import Estimate
    from onnxbolt.tune.summary import Tuning

__all__ = ["Fused", "Report"]

FORMAT = 1


@dataclass(frozen=True)
class Fused:
    """One fused node; a pooling has no FLOPs, no configurations and no predictions."""

    name: str
    op: str
    tensor: str  # tensor of the original that output 0 is
    rule: str
    source_nodes: tuple[str, ...]
    flops: int = 0  # FLOPs of the source nodes: without padded channels
    configs: tuple[str, ...] = ()
    predicted: tuple[Prediction, ...] = ()  # one per architecture


@dataclass(frozen=True)
class Report:
    """The data of a run's report; `verification` is None where it was skipped."""

    precision: str
    fuse: str
    archs: tuple[int, ...]
    fused: tuple[Fused, ...]
    refusals: tuple[Refusal, ...]
    kept: tuple[Kept, ...]
    changes: tuple[str, ...]  # changes by canonicalization
    shared_weights: tuple[str, ...]  # stored twice: packed, and as they were for nodes that stay
    # fused nodes' share of the FLOPs of all products and convolutions; None if the model has none
    # of those
    coverage: float | None
    nothing_fused: str  # why nothing was fused; empty if something was
    digest: str
    verification: VerifyResult | None = None
    tuning: Tuning | None = None  # with --tune
    regions: tuple[
        Verdict, ...
    ] = ()  # comparisons with ONNX Runtime that --fuse winning decided by
    onnxruntime: str = ""  # the release whose CUDA kernels decided what stays in fp32
    passed_through: str = ""  # why the model was written unchanged; empty if it was optimized
    whole: tuple[Estimate, ...] = ()  # predicted times of the whole model, one per architecture
    original: str = ""  # paths, where the models are files
    optimized: str = ""
    strict: bool = False  # with it, a model that could not be judged counts as failed
    library_sha256: str = ""  # sum of the library's file; empty if none was compiled
    version: str = __version__
    format: int = FORMAT

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

    def between(self, original: object, optimized: Path | None) -> Report:
        """The report with the models' paths; a model in memory has none."""
        path = str(original) if isinstance(original, str | Path) else ""
        return dataclasses.replace(self, original=path, optimized=str(optimized or ""))

    def verified(self, verification: VerifyResult) -> Report:
        """The report with what verification found."""
        return dataclasses.replace(self, verification=verification)

    def short_of(self, percent: float | None) -> str:
        """One line if fused nodes do less than `percent` of the FLOPs, else an empty text."""
        if percent is None or (self.coverage is not None and 100 * self.coverage >= percent):
            return ""
        why = f"; {self.nothing_fused}" if self.nothing_fused else ""
        return (
            f"fused nodes do {self.coverage or 0:.1%} of the FLOPs of all matrix products and"
            f" convolutions, less than {option('require_fused', percent)}{why}"
        )

    @property
    def passed(self) -> bool:
        """True if nothing that was verified failed, and with `strict` all of it could be judged."""
        found = self.verification
        return found is None or (found.passed and (found.judged or not self.strict))

    def failure(self) -> str:
        """One line on the failure and its remedies; empty if nothing failed."""
        if self.passed or self.verification is None:
            return ""
        failures = self.verification.failures
        if not failures:
            unjudged = self.verification.unjudged
            what = (
                "a part of the model"
                if unjudged and unjudged[0].level != "model"
                else "the whole model"
            )
            why = (
                f"{unjudged[0].kind} {unjudged[0].name}: {unjudged[0].unjudged}"
                if unjudged
                else "there was nothing to compare"
            )
            return (
                f"{what} could not be judged: {why}; give inputs that allow a verdict"
                f" with {option('inputs')}"
            )
        worst = max(failures, key=lambda row: math.inf if math.isnan(row.error) else row.error)
        remedies = (
            [f"{option('precision', 'keep')} rounds only the factors of products, to TF32"]
            if self.verification.precision != "keep"
            else []
        )
        if self.verification.precision == "fp16" and any(
            row.reason == NOT_FINITE for row in failures
        ):
            remedies.insert(
                0, f"fp16 ends at 65504, and {option('precision', 'bf16')} has the range of fp32"
            )
        return (
            f"{len(failures)} of {len(self.verification.rows)} tensors differ from the original by"
            f" more than allowed, e.g. {worst.kind} {worst.name}: {worst.reason};"
            f" {', '.join([*remedies, option('keep_failed', True) + ' keeps the file'])}"
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
    row = Fused(node.name, node.op_type, values["tensor"].decode(), rule, sources)
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
