"""The contents of a run's report, and the values that follow from them."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from onnxbolt.candidates import Refusal
from onnxbolt.measurements.benchmark import Benchmark
from onnxbolt.precision import Kept
from onnxbolt.spelling import option
from onnxbolt.verify import VerifyResult
from onnxbolt.verify.result import NOT_FINITE
from onnxbolt.version import __version__

if TYPE_CHECKING:
    from onnxbolt.measurements.records import Machine
    from onnxbolt.plan.choose import Prediction, Totals
    from onnxbolt.plan.verdicts import Verdict
    from onnxbolt.plan.whole import Estimate
    from onnxbolt.quantize.scales import Quantization
    from onnxbolt.report.blocks import Drawing
    from onnxbolt.tune.summary import Tuning

FORMAT = 2


@dataclass(frozen=True)
class Fused:
    """One fused node; a pooling has no FLOPs, no configurations and no predictions."""

    name: str
    op: str
    tensor: str  # tensors of the original that output 0 is, with commas between
    rule: str
    source_nodes: tuple[str, ...]
    flops: int = 0  # FLOPs of the source nodes: without padded channels
    configs: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()  # names as profilers print them, one per configuration
    predicted: tuple[Prediction, ...] = ()  # one per architecture
    body: str = ""  # the body of control flow that it is in; empty for the main graph


@dataclass(frozen=True)
class ReportData:
    """The fields of a run's report; `verification` is None where it was skipped."""

    precision: str
    fuse: str
    archs: tuple[int, ...]
    fused: tuple[Fused, ...]
    refusals: tuple[Refusal, ...]
    kept: tuple[Kept, ...]
    changes: tuple[str, ...]  # changes by canonicalization
    shared_weights: tuple[str, ...]  # stored twice: packed, and as they were for nodes that stay
    # fused nodes' share of the FLOPs of all products and convolutions; None for a model without
    # FLOPs
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
    planning: Totals | None = None  # None where a lock file decided
    whole: tuple[Estimate, ...] = ()  # predicted times of the whole model, one per architecture
    original: str = ""  # paths, where the models are files
    optimized: str = ""
    skips: str = ""  # the options by which nodes stay, as on a command line
    skipped: tuple[str, ...] = ()  # the source nodes, or their tensors, that stay
    strict: bool = False  # with it, a model that could not be judged counts as failed
    speed: Benchmark | None = None  # with --min-speedup: the whole model, measured as bench does
    library_sha256: str = ""  # sum of the library's file; empty if none was compiled
    library_bytes: int = 0
    before: Drawing | None = None  # the nodes of both models; None if the model is unchanged
    after: Drawing | None = None
    quantization: Quantization | None = None  # with --precision int8 or fp8
    machine: Machine | None = None  # the GPU and versions of measured times; None if there are none
    gpus: tuple[str, ...] = ()  # the GPU that predicted times are for, one per architecture
    version: str = __version__
    format: int = FORMAT

    def between(self, original: object, optimized: Path | None) -> Self:
        """The report with the models' paths; a model in memory has none."""
        path = str(original) if isinstance(original, str | Path) else ""
        return dataclasses.replace(self, original=path, optimized=str(optimized or ""))

    def weighed(self, original: int, optimized: int, library: int) -> Self:
        """The report with the bytes of the files."""
        before = self.before and dataclasses.replace(self.before, bytes=original)
        after = self.after and dataclasses.replace(self.after, bytes=optimized)
        return dataclasses.replace(self, before=before, after=after, library_bytes=library)

    def verified(self, verification: VerifyResult) -> Self:
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
        """True if nothing that was verified failed, and with `strict` all of it could be judged;
        and if no output of a quantized model is off by more than was allowed."""
        if self.quantization and self.quantization.beyond:
            return False
        found = self.verification
        return found is None or (found.passed and (found.judged or not self.strict))

    def failure(self) -> str:
        """One line on the failure and its remedies; empty if nothing failed."""
        if self.quantization and self.quantization.beyond:
            return self._too_far_off(self.quantization)
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

    def _too_far_off(self, made: Quantization) -> str:
        errors = made.scales.errors
        worst = max(made.beyond, key=lambda name: (math.isnan(errors[name]), errors[name]))
        return (
            f"output {worst} of the quantized model is off by {errors[worst]:.2e} on the"
            f" calibration data, more than {option('max_error', made.max_error)}:"
            f" {option('calibration_method')} finds other scales, and {option('precision', 'fp16')}"
            f" rounds less; {option('keep_failed', True)} keeps the files"
        )
