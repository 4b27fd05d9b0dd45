"""Tables are what the committed results say, and committed."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from benchmarks.columns import TABLES
from benchmarks.common import Row
from benchmarks.documents import write, write_results
from benchmarks.tables import (
    NOTHING,
    OF_ANY_COMMIT,
    PAGES,
    load,
    of_one_commit,
    rendered,
    results_of,
)
from tests.conftest import ROOT


@pytest.mark.parametrize("page", PAGES)
def test_committed_pages_show_the_committed_results(page: str) -> None:
    text = (ROOT / page).read_text()
    assert "<!-- begin:" in text
    assert rendered(text, results_of(page)) == text, "run: python -m benchmarks.tables"


def test_readme_shows_figures_of_one_commit() -> None:
    commits = {
        row["values"].get("commit", document["commit"])
        for benchmark, documents in results_of("README.md").items()
        if benchmark not in OF_ANY_COMMIT
        for document in documents
        for row in document["rows"]
    }
    assert len(commits) == 1
    _, _, below = (ROOT / "README.md").read_text().partition("<!-- end:varying_summary -->")
    named = set(re.findall(r"commit ([0-9a-f]{12})", below))
    assert named == commits


def block(name: str, directory: Path) -> str:
    return rendered(
        f"before\n<!-- begin:{name} -->\nold\n<!-- end:{name} -->\nbehind\n", load(directory)
    )


def test_without_results_the_section_says_so(tmp_path: Path) -> None:
    assert (
        block("gemm", tmp_path)
        == f"before\n<!-- begin:gemm -->\n{NOTHING}\n<!-- end:gemm -->\nbehind\n"
    )


def test_rows_means_and_failures_are_shown(tmp_path: Path) -> None:
    row = Row(
        "1280x768x768",
        1,
        "fp16",
        4.0,
        "cuBLAS",
        5.0,
        1.25,
        1.5,
        0.012,
        values={"tflops": 377.4, "regret": 1.0},
    )
    rows = [
        row,
        dataclasses.replace(row, name="1024x1024x1024", ours_us=5.0, ratio=1.0),
        Row("8x8x8", 1, "fp16", values={"failure": "no"}),
    ]
    write_results("gemm", rows, tmp_path / "gemm-nvidia-h200.json")
    text = block("gemm", tmp_path)
    assert (
        "| 1280x768x768 | 4.00 | cuBLAS | 5.00 | 1.25 |  |  | 1.50 | 1.2% | 377 |  | 1.00 |" in text
    )
    assert "Geometric mean of the ratios 1.12, least 1.00." in text
    assert "Failed: 8x8x8: no" in text
    assert rendered(text, load(tmp_path)) == text


def test_the_overview_has_a_line_for_each_group(tmp_path: Path) -> None:
    assert (
        block("overview", tmp_path)
        == f"before\n<!-- begin:overview -->\n{NOTHING}\n<!-- end:overview -->\nbehind\n"
    )
    rows = [
        Row(f"{size} {chain}", 1, "fp16", 4.0, "cuBLAS", 5.0, ratio, values={"epilogue": chain})
        for size, chain, ratio in ((1, "none", 1.0), (2, "none", 1.21), (1, "Bias", 0.9))
    ]
    write_results(
        "gemm",
        [*rows, Row("3", 1, "fp16", values={"failure": "no"})],
        tmp_path / "gemm-nvidia-h200.json",
    )
    lines = block("overview", tmp_path).splitlines()
    assert [line.split("|")[-6:-3] for line in lines if "epilogue" in line] == [
        [" 2 ", " 1.10 ", " 1.00 "],
        [" 1 ", " 0.90 ", " 0.90 "],
    ]
    assert "(epilogue none: 1.10, least 1.00; epilogue Bias: 0.90, least 0.90)" in block(
        "gemm", tmp_path
    )


def test_rows_whose_peer_is_partly_estimated_enter_no_mean(tmp_path: Path) -> None:
    measured = Row(
        "56x56 64->64",
        32,
        "fp16",
        4.0,
        "cuDNN",
        5.0,
        1.25,
        values={"serial_us": 4.4, "serial_ratio": 1.14},
    )
    values = {"estimated": "the residual's bytes", "serial_ratio": 8.0}
    estimated = dataclasses.replace(measured, name="56x56 64->256", ratio=9.0, values=values)
    write_results("conv", [measured, estimated], tmp_path / "conv-nvidia-h200.json")
    text = block("conv", tmp_path)
    assert (
        "Geometric mean of the ratios 1.25, least 1.25. Launches not overlapping: 1.14, least 1.14."
        " 1 rows whose peer's" in text
    )
    assert "| 4.00 | cuDNN | 5.00 | 1.25 | 4.40 | 1.14 |" in text
    assert "| 1 | 1.25 | 1.25 | 1.14 | 1.14 |" in block("overview", tmp_path)


def test_a_page_of_one_commit_leaves_out_others_and_no_mean_flatters(tmp_path: Path) -> None:
    row = Row("resnet50", 32, "fp16", 4.0, "peer", 5.0, 1.25)
    for benchmark, commit, rows in (
        ("end_to_end", "new", [row]),
        ("conv", "old", [row]),
        ("gemm", "new", [row]),
        ("varying", "old", [dataclasses.replace(row, name="unet, new")]),
    ):
        path = write_results(benchmark, rows, tmp_path / f"{benchmark}-nvidia-h200.json")
        write(path, {**json.loads(path.read_text()), "commit": commit})
    kept = of_one_commit(load(tmp_path))
    assert {
        benchmark: [len(document["rows"]) for document in found]
        for benchmark, found in kept.items()
    } == {"end_to_end": [1], "conv": [0], "gemm": [1], "varying": [1]}
    assert "commit old." in rendered(
        "<!-- begin:varying_summary -->\n<!-- end:varying_summary -->\n", kept
    )
    page = rendered(
        "<!-- begin:conv -->\n<!-- end:conv -->\n<!-- begin:overview -->\n<!-- end:overview -->\n",
        kept,
    )
    assert "Not measured at this commit: resnet50 (32)." in page
    assert "Geometric mean" not in page
    assert "measured at this commit: convolutions with epilogue against cuDNN's bare ones." in page


def test_rows_that_a_file_lacks_are_named_and_there_is_no_mean(tmp_path: Path) -> None:
    row, planned = (
        Row("resnet50", 32, "fp16", 4.0, "peer", 5.0, 1.25),
        [
            ("resnet50", 32),
            ("vit_b16", 1),
        ],
    )
    path = tmp_path / "end_to_end-nvidia-h200.json"
    write_results("end_to_end", [row], path, planned=planned)
    summary = block("summary", tmp_path)
    assert "Not measured at this commit: vit_b16 (1)." in summary
    assert "Geometric mean" not in summary
    write_results(
        "end_to_end",
        [dataclasses.replace(row, name="vit_b16", batch=1)],
        path,
        append=True,
        planned=planned,
    )
    assert "Geometric mean of the ratios 1.25" in block("summary", tmp_path)
    write_results(
        "end_to_end",
        [Row("vit_b16", 1, "fp16", values={"failure": "no"})],
        path,
        append=True,
        planned=planned,
    )
    assert "Not measured at this commit: vit_b16 (1)." in block("summary", tmp_path)


def test_transformers_have_columns_of_their_own_and_a_line_for_each_form(tmp_path: Path) -> None:
    values = {
        "transformers_us": 868.0,
        "transformers_ratio": 1.05,
        "device_ratio": 0.81,
        "pytorch_us": 951.0,
        "pytorch_ratio": 0.84,
        "pytorch_way": "CUDA graph",
        "pytorch": {"CUDA graph": 951.0, "torch.compile max-autotune": "not within 60 s"},
        "forms": {
            "plain export, fp16 inputs": 1500.0,
            "onnxruntime.transformers": 913.0,
            "PyTorch's export, opset 23": 1300.0,
        },
        "missing": {"PyTorch's export, opset 18": "RuntimeError: no setting runs"},
    }
    rows = [
        Row("bert_base", 32, "fp16", 1137.0, "peer", 913.0, 0.803, values=values),
        Row("resnet50", 32, "fp16", 650.0, "peer", 2058.0, 3.17),
    ]
    write_results("end_to_end", rows, tmp_path / "end_to_end-nvidia-h200.json")
    summary = block("summary", tmp_path)
    assert (
        "| bert_base | 32 | 1.137 | 0.913 | 0.80 | 0.81 | 0.868 | 1.05 | 0.951 | CUDA graph |"
        " 0.84 |" in summary
    )
    # in the order of the targets, whatever was measured first
    assert summary.index("resnet50") < summary.index("bert_base")
    assert "Geometric mean of the ratios 1.60, least 0.80." in summary
    assert "| bert_base | 32 | plain export, fp16 inputs | 1.137 | 1.500 |" in block(
        "forms", tmp_path
    )
    assert "| bert_base | 32 | onnxruntime.transformers | 0.868 | 0.913 |" in block(
        "forms", tmp_path
    )
    assert "| bert_base | 32 | PyTorch's export, opset 18 |  | does not run |" in block(
        "forms", tmp_path
    )
    assert "| bert_base | 32 |  | 0.951 | not within 60 s |  |  |" in block("pytorch", tmp_path)


def test_tuning_shows_what_is_known_by_kind(tmp_path: Path) -> None:
    values = {
        "seconds_cold": 123.4,
        "seconds_warm": 4.2,
        "tasks": 20,
        "trials": 200,
        "kernels": 90,
        "regret": {"conv": 1.1, "gemm": 1.02},
    }
    write_results(
        "tuning", [Row("resnet50", 32, "fp16", values=values)], tmp_path / "tuning-nvidia-h200.json"
    )
    assert (
        "| resnet50 | 32 | 123 | 4.2 | 20 |  |  | 200 | 90 | conv 1.10, gemm 1.02 |  |  |"
        in block("tuning", tmp_path)
    )


def test_each_benchmark_of_a_page_has_a_table() -> None:
    assert {"summary", "end_to_end", "gemm", "tuning"} <= TABLES.keys()
    with pytest.raises(KeyError, match="unknown"):
        rendered("<!-- begin:unknown -->\n<!-- end:unknown -->", {})
