"""The differences between two lock files."""

from __future__ import annotations

import dataclasses

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.measurements.timings import Choice, Comparison, Cut, Scheduled
from onnxbolt.plan.cost import candidates
from onnxbolt.problems import GemmProblem
from onnxbolt.report.diff import Change
from onnxbolt.report.locks import lock_changes
from onnxbolt.tune.lockfile import Lock

PROBLEM = GemmProblem(1024, 1000, 1000, DType.F16, DType.F16, ("Bias",))
FIRST, SECOND, *_ = sorted(candidates(PROBLEM, get(90)))
REGION = Comparison(10.0, 0.1, 20.0, 0.1, decided=True, region="gemm x")
LOCK = Lock(
    "fp16",
    ("sm_90a",),
    choices={(PROBLEM, 90): Choice(FIRST, 5.0)},
    comparisons={"r": REGION},
    cuts={"c": Cut(2, "gemm, gemm")},
    schedules={"s": Scheduled((0, 1), "scope")},
    kernels="0123456789abcdef",
    onnxruntime="1.31",
)


def test_equal_locks_and_other_times_do_not_differ() -> None:
    later = dataclasses.replace(
        LOCK,
        choices={(PROBLEM, 90): Choice(FIRST, 7.0, 0.2)},
        comparisons={"r": dataclasses.replace(REGION, ours_us=11.0)},
    )
    assert lock_changes(LOCK, LOCK) == lock_changes(LOCK, later) == ()


def test_each_kind_of_choice_is_told() -> None:
    other = dataclasses.replace(
        LOCK,
        choices={(PROBLEM, 90): Choice(SECOND, 5.0)},
        comparisons={"r": dataclasses.replace(REGION, decided=False), "new": REGION},
        cuts={},
        schedules={"s": Scheduled((1, 0), "scope")},
        kernels="fedcba9876543210",
        onnxruntime="1.32",
        archs=("sm_80", "sm_90a"),
    )
    found = lock_changes(LOCK, other)
    assert found[:3] == (
        Change("onnxbolt's kernels", "0123456789ab", "fedcba987654"),
        Change("ONNX Runtime", "1.31", "1.32"),
        Change("architectures", "sm_90a", "sm_80 sm_90a"),
    )
    gemm, *others = found[3:]
    assert gemm.what == f"{PROBLEM.description} on sm_90"
    assert gemm.before != gemm.after
    assert gemm.before.startswith("sm_90 ")
    assert others == [
        Change("layers in one kernel of gemm, gemm", "2", None),
        Change("phases of scope", "0 1", "1 0"),
        Change("region gemm x", None, "fused"),
        Change("region gemm x", "fused", "left to ONNX Runtime"),
    ]
