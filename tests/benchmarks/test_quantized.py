"""The benchmark of products of codes, with a GPU and PyTorch's products that take no time."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from benchmarks import quantized
from benchmarks.columns import TABLES
from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.families import named
from onnxbolt.problems import ConvProblem, QuantizedConvProblem
from tests.benchmarks import fakes


def _taking(us: float, count: int) -> list[float]:
    return [us] * count


@pytest.fixture(autouse=True)
def _fakes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fakes.install(monkeypatch, tmp_path / "cache")
    times = {
        DType.E4M3: {"_scaled_mm to bf16": 30.0, "_scaled_mm to fp8": 20.0},
        DType.I8: {"_int_mm": 40.0},
    }

    def libraries(half: object, sides: object) -> object:
        if isinstance(half, ConvProblem):
            return {}
        return {
            dtype: {form: partial(_taking, us) for form, us in forms.items()}
            for dtype, forms in times.items()
        }

    monkeypatch.setattr(quantized, "libraries", libraries)


def test_products_are_compared_with_fp16_and_with_the_library_s_best(tmp_path: Path) -> None:
    out = tmp_path / "quantized.json"
    rows = fakes.rows(quantized.main, out, "--shapes", "1280x3072x768")
    assert [row["name"] for row in rows] == [
        "1280x3072x768 Bias+Relu",
        "1280x3072x768 Bias+GeluErf",
    ]
    for row in rows:
        values = row["values"]
        assert (row["dtype"], row["peer"]) == ("fp8", "our fp16 kernel")
        assert row["ratio"] == pytest.approx(row["peer_us"] / row["ours_us"], rel=1e-3)
        assert values["int8_ratio"] == pytest.approx(row["peer_us"] / values["int8_us"], rel=1e-3)
        assert (values["fp8_library"], values["fp8_library_us"]) == ("_scaled_mm to fp8", 20.0)
        assert values["fp8_library_ratio"] == pytest.approx(20.0 / row["ours_us"], rel=1e-3)
        assert values["int8_library_us"] == 40.0


def test_the_table_has_the_library_s_products_with_sums_in_fp32() -> None:
    columns = TABLES["quantized"].columns
    forms = {"_scaled_mm to fp8": 25.0, "_scaled_mm to bf16": 30.0, "_int_mm": 9.0}
    values = {"tried": {**forms, "_scaled_mm to fp8, fast accumulation": 20.0}}
    row = {"ours_us": 20.0, "values": values}
    assert columns["with sums in fp32, us"](row) == "25.00"
    assert columns["ratio to that"](row) == "1.25"
    assert columns["ratio to that"]({"ours_us": 20.0, "values": {}}) == ""


def test_convolutions_are_compared_with_fp16(tmp_path: Path) -> None:
    rows = fakes.rows(quantized.main, tmp_path / "quantized.json", "--shapes", "2048 1x1 Bias+Add")
    assert [row["name"] for row in rows] == ["7x7 512->2048 1x1 Bias+Add+Relu"]
    assert (rows[0]["dtype"], rows[0]["batch"]) == ("int8", 32)
    assert "int8_library" not in rows[0]["values"]
    assert rows[0]["values"]["occurrences"] == 2


def test_all_rows_are_there_and_have_kernels() -> None:
    """GEMMs, some of them once more with GELU, and ResNet-50's convolutions but the first."""
    entries = quantized.entries()
    names = [entry.name for entry in entries]
    assert len(names) == len(set(names)) == 10 + 3 + 26
    for family in (named("quantized_gemm_sm90"), named("quantized_conv_sm90")):
        for problem in (problem for entry in entries for problem in entry.problems[1:]):
            if isinstance(problem, family.problems):
                assert family.candidates(problem, get(90)), problem.description


def test_a_residual_is_one_of_codes() -> None:
    problems = [p for entry in quantized.convolutions() for p in entry.problems]
    halves = [p for p in problems if isinstance(p, ConvProblem)]
    assert sum("Add" in p.chain for p in halves) == sum(
        "AddCodesI8" in p.chain for p in problems if isinstance(p, QuantizedConvProblem)
    )
