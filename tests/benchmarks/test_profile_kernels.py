"""Reading what Nsight Compute writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import profile_kernels
from onnxbolt.errors import InputError
from onnxbolt.families.pool import PoolConfig

METRICS = [
    "gpu__time_duration.sum",
    "dram__bytes.sum.per_second",
    *profile_kernels._SHARES.values(),
]
OURS = PoolConfig(arch=90)


def csv(*rows: tuple[str, str, str, str, str, str, str]) -> str:
    lines = [
        ["ID", "Kernel Name", "Grid Size", *METRICS],
        ["", "", "", "ns", "byte/s", "%", "%", "%"],
    ]
    lines += [[str(i), *row] for i, row in enumerate(rows)]
    return "==PROF== Connected\n" + "\n".join(
        ",".join(f'"{cell}"' for cell in line) for line in lines
    )


TEXT = csv(
    (
        "void cudnn::nchw<float>(Params)",
        "(8, 1, 1)",
        "13,440",
        "498,971,428,571.43",
        "10.39",
        "47.59",
        "38.51",
    ),
    (
        (
            f"void onnxbolt::pool<onnxbolt::Config<{', '.join(f'(long){n}' for n in OURS.row())}>,"
            " 8>(P)"
        ),
        "(1, 1, 1)",
        "50,000",
        "3,000,000,000,000",
        "81",
        "0",
        "2",
    ),
    ("void cudnn::nchw<float>(Params)", "(8, 1, 1)", "15,440", "400,000,000,000", "9", "50", "40"),
    ("void cudnn::nchw<float>(Params)", "(9, 1, 1)", "1,000", "0", "0", "99", "0"),
)


def test_the_slowest_kernels_are_ranked_and_say_what_limits_them(tmp_path: Path) -> None:
    (tmp_path / "ncu.csv").write_text(TEXT)
    out = tmp_path / "profile.json"
    assert (
        profile_kernels.main(
            ["vgg16", "--csv", str(tmp_path / "ncu.csv"), "--count", "2", "--out", str(out)]
        )
        == 0
    )
    first, second = json.loads(out.read_text())["rows"]
    assert (first["name"], first["ours_us"], first["values"]["limit"]) == (
        "vgg16 1",
        50.0,
        "device memory",
    )
    assert first["values"]["dram_tb_per_s"] == 3.0
    assert "pool" in first["config"]
    assert (second["config"], second["ours_us"], second["values"]["launches"]) == (
        "cudnn::nchw",
        14.44,
        2,
    )
    assert second["values"]["limit"].startswith("latency")


def test_no_kernel_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ncu.csv").write_text(
        "==PROF== Disconnected\n==WARNING== No kernels were profiled.\n"
    )
    assert (
        profile_kernels.main(
            ["vgg16", "--csv", str(tmp_path / "ncu.csv"), "--out", str(tmp_path / "profile.json")]
        )
        == 1
    )
    assert "ncu profiled no kernel" in capsys.readouterr().err


def test_a_failing_ncu_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxbolt.optimize", lambda *_, **__: None)
    # python knows no --csv
    monkeypatch.setattr("shutil.which", lambda _: sys.executable)
    with pytest.raises(InputError, match="ncu ended with 2"):
        profile_kernels.profiled("dlrm_mlp", 4, 60.0)
