"""The README's lines for running a model, run as they are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import onnx

import onnxbolt
from tests.conftest import ROOT
from tests.support import Net


def test_the_readme_s_lines_run_where_there_is_no_gpu(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    (lines,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    net = Net({"x": ("N", 24)})
    onnx.save(net.model(net.node("Relu", net.linear("x", 24, 16))), tmp_path / "model.onnx")
    onnxbolt.optimize(tmp_path / "model.onnx", tmp_path / "fast.onnx", fuse="all", library=False)
    checked = lines + "print([value.name for value in session.get_inputs()])\n"
    done = subprocess.run(
        [sys.executable, "-c", checked], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['x']\n"
    assert "OnnxboltWarning" in done.stderr  # there is no library
