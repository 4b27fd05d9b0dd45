"""The record of exported models (tests/zoo/verified.py): which runs it lacks, what an entry holds,
and what it counts as a fault."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from tests import false_alarms
from tests.false_alarms import PRECISIONS, Task
from tests.test_verify import drawn, model_of
from tests.zoo import coverage, verified
from tests.zoo.coverage import Studied
from tests.zoo.recognition import OVERLOOKED
from tests.zoo.stored import names

THREADS = "OPENBLAS_NUM_THREADS"
RIGHT: dict[str, Any] = {
    "fused": 1.0,
    "left": [],
    "parts": {},
    "failures": [],
    "at other sizes": {"y": "ok"},
}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        ({"fused": 0.9}, "only 90.00% of the products are fused"),
        (
            {"left": [{"op": "Conv", "nodes": 2, "reason": OVERLOOKED}]},
            "2 Conv: neither fused nor refused",
        ),
        ({"left": [{"op": "Conv", "nodes": 2, "reason": "3 groups"}]}, None),
        (
            {"parts": {"norm": {"parts": 5, "fused": 4, "left": {OVERLOOKED: 1}}}},
            "1 norm: neither fused nor refused",
        ),
        ({"parts": {"norm": {"parts": 5, "fused": 4, "left": {"read elsewhere": 1}}}}, None),
        ({"failures": ["segment h: error"]}, "segment h: error"),
        ({"at other sizes": {"y": "FAILED shape"}}, "y at other sizes: FAILED shape"),
        ({"at other sizes": {"y": "not judged: rounding"}}, None),
        ({"at other sizes": {"": "the original does not run: Reshape"}}, None),
    ],
)
def test_faults(change: dict[str, Any], fault: str | None) -> None:
    assert list(verified.faults(RIGHT | change)) == ([fault] if fault else [])


def test_known_times_come_first_and_small_models_before_large_ones() -> None:
    large, small, known = (
        "bert_large.dynamo18.sdpa.mask",
        "minilm.ts17.eager.mask",
        "unet.ts17.dynamic",
    )
    table = {f"{known} keep": {"code": "old", "seconds": 9.0}}
    found = verified.tasks(table, [large, small, known], ["keep"], "new")
    assert [task.name for task in found] == [known, small, large]
    assert verified.tasks(table, [known], ["keep", "fp16"], None) == [Task(known, "fp16", ())]


def studied(monkeypatch: pytest.MonkeyPatch, model: ModelProto, at: dict[str, Any] | None) -> Any:
    monkeypatch.setattr(coverage, "load", lambda name: model)
    monkeypatch.setattr(coverage, "shapes", lambda name: at)
    return Studied("model", "keep", verify=True)


def gated(shape: str) -> ModelProto:
    """A product whose halves make a gated linear unit, and another product."""
    model = model_of(
        "(float[N,8] x) => (float[M,8] y)",
        f"""g = MatMul(x, v) a, u = Split<axis=1>(g) s = Sigmoid(a) t = Mul(u, s)
            r = Reshape(t, {shape}) y = MatMul(r, w)""",
        {
            "w": drawn(0, 8, 8),
            "v": drawn(1, 8, 16),
            "three": np.array([3, 8]),
            "any": np.array([-1, 8]),
        },
    )
    for node in model.graph.node:
        node.name = node.output[0]
    return model


def test_an_entry_counts_parts_and_runs_at_other_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = verified.entry(studied(monkeypatch, gated("any"), {"x": (3, 8)}))
    assert found["sizes"] == ["x:3x8"]
    assert found["at other sizes"] == {"y": "ok"}
    assert found["parts"]["glu"]["parts"] == 1
    assert found["verdict"].startswith("PASSED")
    assert found["faults"] == []


def test_an_original_that_runs_at_one_size_only_is_no_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = verified.entry(studied(monkeypatch, gated("three"), {"x": (3, 8)}))
    ((name, said),) = found["at other sizes"].items()
    assert (name, said.partition(":")[0]) == ("", "the original does not run")
    assert found["faults"] == []


def test_without_stored_sizes_verification_compares_usual_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = verified.entry(studied(monkeypatch, gated("any"), None))
    assert found["sizes"] == ["x:1x8", "x:3x8"]
    assert found["at other sizes"] == {}


def test_the_table_names_stored_models_alone() -> None:
    table = json.loads(verified.TABLE.read_text())
    keys = {f"{name} {precision}" for name in names() for precision in PRECISIONS}
    assert table.keys() <= keys
    assert all({"code", "faults"} <= found.keys() for found in table.values())


@pytest.mark.parametrize("program", [verified, false_alarms])
def test_runs_side_by_side_multiply_with_their_share_of_threads(
    program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a thread for each core in each run, small products take ten times as long."""
    found: list[str] = []
    monkeypatch.setattr(program, "run", lambda *_: found.append(os.environ[THREADS]))
    monkeypatch.setattr(sys, "argv", ["", "--jobs", "999", "--into", str(tmp_path / "table")])
    monkeypatch.setenv(THREADS, "4")
    program.main()
    assert found == ["1"]
