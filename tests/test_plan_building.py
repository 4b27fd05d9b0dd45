"""The reader of cuDNN's log, on text in the form that cuDNN 8.2 and 9.12 write it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.gpu.plan_building import Log, Served, logged

_TIME = """i! Time: 2025-11-14T23:49:41.702901 (0d+0h+1m+39s since start)
i! Process=3600; Thread=10156; GPU=NULL; Handle=NULL; StreamId=NULL.

"""


def call(function: str, details: str = "") -> str:
    return f"\nI! CuDNN (v91200 46) function {function}() called:\n{details}{_TIME}"


def of_type(name: str) -> str:
    return f"i!     descriptor: type=CUDNN_BACKEND_{name}_DESCRIPTOR:\n"


def created(name: str) -> str:
    kind = f"CUDNN_BACKEND_{name}_DESCRIPTOR (4)"
    return f"i!     descriptorType: type=cudnnBackendDescriptorType_t; val={kind};\n"


PLAN = of_type("EXECUTION_PLAN") + "i!         engcfg: type=CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:\n"


def test_plans_heuristics_and_searches_are_counted() -> None:
    log = Log.of(
        call("cudnnCreate")
        + call("cudnnBackendCreateDescriptor", created("ENGINEHEUR"))
        + call("cudnnBackendSetAttribute", PLAN)
        + call("cudnnBackendFinalize", PLAN) * 2
        + call("cudnnBackendFinalize", "i!     status: type=cudnnStatus_t; val=SUCCESS (0);\n")
        + call("cudnnFindConvolutionForwardAlgorithmEx")
        + call("cudnnGetConvolutionForwardAlgorithm_v7")
    )
    assert log.building == {
        "cudnnBackendCreateDescriptor CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR": 1,
        "cudnnBackendFinalize CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR": 2,
        "cudnnFindConvolutionForwardAlgorithmEx": 1,
        "cudnnGetConvolutionForwardAlgorithm_v7": 1,
    }
    assert log.calls["cudnnBackendFinalize"] == 3
    assert log.calls["cudnnCreate"] == 1


def test_other_calls_build_nothing() -> None:
    engine = of_type("ENGINECFG") + "i!         of: type=CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR\n"
    log = Log.of(
        call("cudnnBackendCreateDescriptor", created("TENSOR"))
        + call("cudnnBackendFinalize", engine)
        + call("cudnnBackendExecute", PLAN)
        + call("cudnnPoolingForward")
        + call("cudnnGetConvolutionNdForwardOutputDim")
    )
    assert log.building == {}
    assert log.calls.total() == 5


@pytest.mark.parametrize("text", ["", "another program's text\n"])
def test_a_text_that_is_no_log_has_no_calls(text: str) -> None:
    assert Log.of(text) == Log.of("")
    assert not Log.of(text).calls


def test_a_process_gets_cudnns_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: dict[str, str]) -> SimpleNamespace:
        file = Path(options["env"]["CUDNN_LOGDEST_DBG"])
        assert options["env"]["CUDNN_LOGLEVEL_DBG"] == "3"
        (entry,) = json.loads(command[-1])
        assert entry == {"path": "a.onnx", "fused": True, "sizes": [{"x": [1, 8]}]}
        file.write_text(call("cudnnBackendFinalize", PLAN))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    served = Served("a.onnx", True, [{"x": [1, 8]}])
    assert logged([served], tmp_path / "log.txt").building.total() == 1


def test_a_process_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)the models did not run: .*none\.onnx"):
        logged([Served(str(tmp_path / "none.onnx"), False, [])], tmp_path / "log.txt")
