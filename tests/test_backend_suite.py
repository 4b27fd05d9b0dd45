"""The part of onnx's backend suite that is run always; `python -m tests.backend_suite` runs all
of it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper

import onnxbolt
from onnxbolt.graph.importer import WORKING_OPSET
from onnxbolt.graph.lift import default_opset
from tests.backend_suite import Case, cases, judge, sample, summary

REWRITTEN = frozenset(
    {  # operators that canonicalization, precision or layouts change
        "Add",
        "AveragePool",
        "BatchNormalization",
        "Clip",
        "Concat",
        "Conv",
        "Dropout",
        "Elu",
        "Expand",
        "Flatten",
        "Gelu",
        "Gemm",
        "GlobalAveragePool",
        "HardSigmoid",
        "HardSwish",
        "Identity",
        "LeakyRelu",
        "MatMul",
        "MaxPool",
        "Mish",
        "Mul",
        "PRelu",
        "Pad",
        "ReduceMean",
        "Relu",
        "Reshape",
        "Resize",
        "Sigmoid",
        "Slice",
        "Softplus",
        "Split",
        "Squeeze",
        "Sum",
        "Tanh",
        "Transpose",
        "Unsqueeze",
    }
)


@functools.cache
def all_cases() -> tuple[Case, ...]:
    return tuple(cases())


def is_old(case: Case) -> bool:
    """True if the model's operators are converted to a newer opset, or are all of another
    domain."""
    return (default_opset(case.model) or 0) < WORKING_OPSET


def is_rewritten(case: Case) -> bool:
    return any(node.op_type in REWRITTEN for node in case.model.graph.node)


def test_no_regression() -> None:
    """Cases that are both old and rewritten are judged once."""
    chosen = [case for case in all_cases() if is_old(case) or is_rewritten(case)]
    verdicts = [judge(case) for case in chosen]
    assert not any(verdict.regressed for verdict in verdicts), summary(verdicts)
    right = [case for case, verdict in zip(chosen, verdicts, strict=True) if not verdict.plain]
    assert sum(map(is_old, right)) >= 120
    assert sum(map(is_rewritten, right)) >= 200


def test_no_regression_in_a_sample_of_the_others() -> None:
    verdicts = [
        judge(case)
        for case in sample(
            [case for case in all_cases() if not is_old(case) and not is_rewritten(case)], 150
        )
    ]
    assert not any(verdict.regressed for verdict in verdicts), summary(verdicts)
    assert sum(not verdict.plain for verdict in verdicts) >= 100


def test_every_case_in_fp16_runs() -> None:
    verdicts = [
        judge(case, "fp16")
        for case in sample([case for case in all_cases() if is_rewritten(case)], 60)
    ]
    assert not any(verdict.regressed for verdict in verdicts), summary(verdicts)


def test_a_wrong_model_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    optimize = onnxbolt.optimize

    def spoiled(model: onnx.ModelProto, out: Path, **choices: Any) -> object:
        report = optimize(model, out, **choices)
        written = onnx.load(out)
        written.graph.node[-1].output[0] = "right"
        written.graph.node.append(
            helper.make_node("Neg", ["right"], [written.graph.output[0].name])
        )
        onnx.save(written, out)
        return report

    monkeypatch.setattr(onnxbolt, "optimize", spoiled)
    case = next(case for case in all_cases() if case.name == "test_exp")
    verdict = judge(case)
    assert verdict.regressed
    assert "Not equal to tolerance" in verdict.ours
    assert "regressions: 1\n  test_exp: " in summary([verdict])


def test_cases_that_are_passed_through_say_why() -> None:
    verdict = judge(next(case for case in all_cases() if case.name == "test_ai_onnx_ml_binarizer"))
    assert not verdict.regressed
    assert "domains other than ONNX's default one" in verdict.passed_through
