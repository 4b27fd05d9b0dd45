"""Tables are what the committed results say, and committed."""
import dataclasses
from pathlib import Path

import pytest

from benchmarks.common import Row
from benchmarks.documents import RESULTS, write_results
from benchmarks.tables import NOTHING, PAGES, TABLES, load, rendered
from tests.conftest import ROOT


@pytest.mark.parametrize("page", PAGES)
def test_committed_pages_show_the_committed_results(page: str) -> None:
    text = (ROOT / page).read_text()
    assert "<!-- begin:" in text
    assert rendered(text, load(RESULTS)) == text, "run: python -m benchmarks.tables"


def block(name: str, directory: Path) -> str:
    return rendered(f"before\n<!-- begin:{name} -->\nold\n<!-- end:{name} -->\nbehind\n", load(directory))


def test_without_results_the_section_says_so(tmp_path: Path) -> None:
    assert block("gemm", tmp_path) == f"before\n<!-- begin:gemm -->\n{NOTHING}\n<!-- end:gemm -->\nbehind\n"


def test_rows_means_and_failures_are_shown(tmp_path: Path) -> None:
    row = Row("1280x768x768", 1, "fp16", 4.0, "cuBLAS", 5.0, 1.25, 1.5, 0.012, values={"tflops": 377.4, "regret": 1.0})
    rows = [row, dataclasses.replace(row, name="1024x1024x1024", ours_us=5.0, ratio=1.0), Row("8x8x8", 1, "fp16", values={"failure": "no"})]
    write_results("gemm", rows, tmp_path / "gemm-nvidia-h200.json")
    text = block("gemm", tmp_path)
    assert "| 1280x768x768 | 4.00 | cuBLAS | 5.00 | 1.25 | 1.50 | 1.2% | 377 |  | 1.00 |" in text
    assert "Geometric mean of the ratios 1.12, least 1.00." in text
    assert "Failed: 8x8x8: no" in text
    assert rendered(text, load(tmp_path)) == text


def test_the_overview_has_a_line_for_each_group(tmp_path: Path) -> None:
    assert block("overview", tmp_path) == f"before\n<!-- begin:overview -->\n{NOTHING}\n<!-- end:overview -->\nbehind\n"
    rows = [Row(f"{size} {chain}", 1, "fp16", 4.0, "cuBLAS", 5.0, ratio, values={"epilogue": chain})
            for size, chain, ratio in ((1, "none", 1.0), (2, "none", 1.21), (1, "Bias", 0.9))]
    write_results("gemm", [*rows, Row("3", 1, "fp16", values={"failure": "no"})], tmp_path / "gemm-nvidia-h200.json")
    lines = block("overview", tmp_path).splitlines()
    assert [line.split("|")[-4:-1] for line in lines if "epilogue" in line] == [[" 2 ", " 1.10 ", " 1.00 "], [" 1 ", " 0.90 ", " 0.90 "]]
    assert "(epilogue none: 1.10, least 1.00; epilogue Bias: 0.90, least 0.90)" in block("gemm", tmp_path)


def test_rows_of_another_commit_are_told(tmp_path: Path) -> None:
    row = Row("resnet50", 32, "fp16", 4.0, "peer", 5.0, 1.25)
    old = {"commit": "abc"}
    rows = [row, dataclasses.replace(row, name="vgg16", values=old), dataclasses.replace(row, batch=1, values=old)]
    write_results("end_to_end", rows, tmp_path / "end_to_end-nvidia-h200.json")
    assert "Of commit abc: vgg16 (32), resnet50 (1)." in block("end_to_end", tmp_path)


def test_tuning_shows_what_is_known_by_kind(tmp_path: Path) -> None:
    values = {"seconds_cold": 123.4, "seconds_warm": 4.2, "tasks": 20, "trials": 200, "kernels": 90, "regret": {"conv": 1.1, "gemm": 1.02}}
    write_results("tuning", [Row("resnet50", 32, "fp16", values=values)], tmp_path / "tuning-nvidia-h200.json")
    assert "| resnet50 | 32 | 123 | 4.2 | 20 |  |  | 200 | 90 | conv 1.10, gemm 1.02 |  |  |" in block("tuning", tmp_path)


def test_each_benchmark_of_a_page_has_a_table() -> None:
    assert {"summary", "end_to_end", "gemm", "tuning"} <= TABLES.keys()
    with pytest.raises(KeyError, match="unknown"):
        rendered("<!-- begin:unknown -->\n<!-- end:unknown -->", {})
