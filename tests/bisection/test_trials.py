"""Faults that are planted into the optimizer, and found by real runs: each in a process of its
own."""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import FunctionProto, helper

from onnxbolt import bisection, canonicalize
from onnxbolt.bisection import Bisection, bisect, trials
from onnxbolt.bisection.search import FUSION, LAYOUT, STAGE, Outcome
from onnxbolt.cli import main
from onnxbolt.errors import InputError
from onnxbolt.layout.carry import Carry, Writer
from onnxbolt.layout.rules import concat
from onnxbolt.library import metadata
from onnxbolt.library_file import sha256_of
from onnxbolt.ops import functions
from onnxbolt.options import Options
from onnxbolt.rewrite import Rewriter
from onnxbolt.runtime import get_library_path
from tests.support import Net

OPTIONS = Options(fuse="all", archs="sm_80")
PASSES = canonicalize.PASSES  # without a planted fault


def net(last: str = "") -> onnx.ModelProto:
    """Convolutions with a residual, a Concat, a BatchNormalization and a GEMM: each fusion has an
    op type of its own."""
    net = Net({"x": [2, 16, 14, 14]})
    a = net.node("Relu", net.conv("x", 16, 20, 3, pads=[1, 1, 1, 1]))
    b = net.node("Relu", net.node("Add", net.conv(a, 20, 20, 3, pads=[1, 1, 1, 1]), a))
    both = net.node("Concat", a, b, axis=2)
    c = net.batchnorm(net.conv(both, 20, 32, 1), 32)
    d = net.node("Sigmoid", net.conv(c, 32, 32, 3, pads=[1, 1, 1, 1]))
    if last:
        net.nodes[-1].name = last
    return net.model(net.linear(net.node("Flatten", net.node("GlobalAveragePool", d)), 32, 16))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.onnx"
    onnx.save(net(), path)
    return path


Plant = Callable[[pytest.MonkeyPatch], None]


def wrong_epilogue(patch: pytest.MonkeyPatch, op: str = "Relu", steps: int = 3) -> None:
    """The function body of one op type computes Abs instead of its activation."""
    build = functions.build

    def built(signature: Any, opset: int, around: Collection[str]) -> FunctionProto:
        function = build(signature, opset, around)
        if len(signature.steps) == steps and op in function.name:
            for node in function.node:
                node.op_type = "Abs" if node.op_type == op else node.op_type
        return function

    patch.setattr("onnxbolt.rewrite.build", built)


def bad_weight(patch: pytest.MonkeyPatch) -> None:
    """The weight of the last convolution is packed in a wrong order."""
    packed = Rewriter.packed

    def arranged(self: Rewriter, weight: gs.Constant, key: Any, arrange: Callable[[], Any]) -> Any:
        result = packed(self, weight, key, arrange)
        if tuple(weight.shape) == (32, 32, 3, 3):
            result.values = np.ascontiguousarray(result.values[::-1])
        return result

    patch.setattr(Rewriter, "packed", arranged)


def wrong_permutation(patch: pytest.MonkeyPatch) -> None:
    """A Concat of NHWC images joins them in the wrong order."""
    emit = concat._emit

    def swapped(writer: Writer, node: gs.Node, carry: Carry) -> None:
        node.inputs = list(node.inputs)[::-1]
        emit(writer, node, carry)

    patch.setattr(concat, "_emit", swapped)


def wrong_canonicalization(patch: pytest.MonkeyPatch) -> None:
    """Weights are too large where BatchNormalization was folded."""

    def wrong(run: Callable[[gs.Graph], int]) -> Callable[[gs.Graph], int]:
        @functools.wraps(run)
        def folded(graph: gs.Graph) -> int:
            count = run(graph)
            if count:
                conv = next(n for n in graph.nodes if n.op == "Conv" and len(n.provenance) > 1)
                conv.inputs[1] = gs.Constant(
                    f"{conv.inputs[1].name}_wrong", conv.inputs[1].values * np.float32(1.5)
                )
            return count

        return folded

    passes = [
        (wrong(run) if run.__module__.endswith(".batchnorm") else run, words)
        for run, words in canonicalize.PASSES
    ]
    patch.setattr(canonicalize, "PASSES", passes)


def endless(function: FunctionProto) -> None:
    """The function's first node copies its input in a Loop of 2^40 iterations."""
    x = function.input[0]
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["goes"]),
            helper.make_node("Identity", ["state"], ["next"]),
        ],
        "endless",
        [
            helper.make_tensor_value_info("i", onnx.TensorProto.INT64, []),
            helper.make_tensor_value_info("go", onnx.TensorProto.BOOL, []),
            onnx.ValueInfoProto(name="state"),
        ],
        [
            helper.make_tensor_value_info("goes", onnx.TensorProto.BOOL, []),
            onnx.ValueInfoProto(name="next"),
        ],
    )
    count = helper.make_tensor("count", onnx.TensorProto.INT64, [], [2**40])
    nodes = [
        helper.make_node("Constant", [], ["count"], value=count),
        helper.make_node("Loop", ["count", "", x], ["copy"], body=body),
        *function.node,
    ]
    for node in nodes[2:]:
        node.input[:] = ["copy" if name == x else name for name in node.input]
    del function.node[:]
    function.node.extend(nodes)


def verify_here(patch: pytest.MonkeyPatch) -> None:
    """Models are verified in this process: starting another one takes longer than that."""

    def ended(command: Sequence[str], log: object, seconds: float) -> int:
        assert command[:5] == [sys.executable, "-P", "-m", "onnxbolt", "verify"]
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(canonicalize, "PASSES", PASSES)
            return main(command[4:])

    patch.setattr(trials, "_ended", ended)


def bound(found: Bisection) -> int:
    return math.ceil(math.log2(found.found.count)) + 2


def steps(found: Bisection) -> list[tuple[str, str]]:
    return [step.key for culprit in found.found.culprits for step in culprit.steps]


@pytest.mark.parametrize(
    ("plant", "step"),
    [
        (wrong_epilogue, (FUSION, "relu4")),
        (bad_weight, (FUSION, "sigmoid9")),
        (wrong_permutation, (LAYOUT, "layout")),
        (wrong_canonicalization, (STAGE, "batchnorm")),
    ],
)
def test_a_fault_is_found(
    plant: Plant, step: tuple[str, str], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if plant is not wrong_epilogue:  # which is found by processes of its own
        verify_here(monkeypatch)
    plant(monkeypatch)
    said: list[str] = []
    found = bisect(source, options=OPTIONS, progress=said.append)
    assert steps(found) == [step], found.text()
    assert "layout layout" not in "\n".join((*said, found.text()))
    assert found.found.runs <= bound(found)
    assert found.found.culprits[0].outcome.words
    assert "function bodies only" in found.text()


def test_two_faults_at_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verify_here(monkeypatch)
    wrong_epilogue(monkeypatch)
    bad_weight(monkeypatch)
    found = bisect(source, options=OPTIONS)
    assert steps(found) == [(FUSION, "relu4"), (FUSION, "sigmoid9")]
    assert [each.alone for each in found.found.culprits] == [False, False]
    assert not found.found.accumulates
    assert "all other steps together pass" in found.text()
    assert "--skip-node conv2" in found.text()


def test_a_canonicalization_and_a_weight(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the pass everything behind it is planned anew."""
    verify_here(monkeypatch)
    wrong_canonicalization(monkeypatch)
    bad_weight(monkeypatch)
    found = bisect(source, options=OPTIONS)
    assert steps(found) == [(STAGE, "batchnorm"), (FUSION, "sigmoid9")]


def test_a_model_without_a_fault(source: Path) -> None:
    said: list[str] = []
    found = bisect(source, options=OPTIONS, progress=said.append)
    assert steps(found) == []
    assert found.text().startswith("nothing fails")
    assert f"\n1 run for {found.found.count} steps" in found.text()
    assert len([line for line in said if line.startswith("run ")]) == found.found.runs == 1


def test_a_hang_is_found(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = functions.build

    def built(signature: Any, opset: int, around: Collection[str]) -> FunctionProto:
        function = build(signature, opset, around)
        if "Sigmoid" in function.name:
            endless(function)
        return function

    monkeypatch.setattr("onnxbolt.rewrite.build", built)
    found = bisect(source, options=OPTIONS, timeout=12)
    assert steps(found) == [(FUSION, "sigmoid9")]
    assert found.found.culprits[0].outcome.words == "no answer within 12 s"
    assert found.found.runs <= bound(found)


def script(tmp_path: Path, lines: str) -> Path:
    """A check; in `lines`, `ops` has the op types of the model's nodes and `path` is its path. It
    reads the model by onnx's message types alone, since importing all of onnx takes longer."""
    path = tmp_path / "check.py"
    path.write_text(
        f"#!{sys.executable}\nimport os, signal, sys, time\n"
        f"sys.path.append({str(Path(onnx.__file__).parent)!r})\n"
        "from onnx_ml_pb2 import ModelProto\n"
        "path = sys.argv[1]\nmodel = ModelProto.FromString(open(path, 'rb').read())\n"
        f"ops = [node.op_type for node in model.graph.node]\n{lines}\n"
    )
    path.chmod(0o755)
    return path


ADDS = "any('Bias_Add_Relu' in op for op in ops)"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (f"sys.exit({ADDS})", "exit code 1"),
        (f"print('broken') or {ADDS} and sys.exit(126)", "exit code 126: broken"),
        (f"{ADDS} and os.abort()", "it crashed (SIGABRT)"),
        (f"{ADDS} and os.kill(os.getpid(), signal.SIGSEGV)", "it crashed (SIGSEGV)"),
        (f"{ADDS} and time.sleep(60)", "no answer within 3 s"),
        # a directory that the check leaves beside the model is removed with it
        (f"os.mkdir(path + '.d')\nsys.exit({ADDS})", "exit code 1"),
        # a process that the check leaves running is ended with it
        (f"{ADDS} and (os.fork() and os._exit(3) or time.sleep(600))", "exit code 3"),
    ],
)
def test_a_check_of_the_user(lines: str, words: str, source: Path, tmp_path: Path) -> None:
    found = bisect(source, script=script(tmp_path, lines), timeout=3, options=OPTIONS)
    assert steps(found) == [(FUSION, "relu4")]
    assert found.found.culprits[0].outcome.words == words
    assert found.found.runs <= bound(found)


def test_models_that_a_check_skips(source: Path, tmp_path: Path) -> None:
    lines = f"{ADDS} and sys.exit(0 if len(ops) > 99 else 1)\n'Sigmoid' in ops and sys.exit(125)"
    found = bisect(source, script=script(tmp_path, lines), options=OPTIONS)
    assert (FUSION, "relu4") in steps(found)
    everything = script(tmp_path, "sys.exit(125)")
    with pytest.raises(InputError, match="skips the model with all steps"):
        bisect(source, script=everything, options=OPTIONS)


def test_the_original_fails_already(source: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="itself fails, before any step is taken: exit code 1"):
        bisect(source, script=script(tmp_path, "sys.exit(1)"), options=OPTIONS)


def test_an_error_that_accumulates(source: Path, tmp_path: Path) -> None:
    lines = "sys.exit(sum(op.startswith('Fused') for op in ops) > 3)"
    found = bisect(source, script=script(tmp_path, lines), options=OPTIONS)
    assert found.found.accumulates
    assert "the error only accumulates" in found.text()


@pytest.mark.parametrize("kind", ["missing", "folder", "not executable", "no interpreter"])
def test_checks_that_cannot_be_run(kind: str, source: Path, tmp_path: Path) -> None:
    path = tmp_path / "check"
    if kind == "folder":
        path.mkdir()
    elif kind != "missing":
        path.write_text("" if kind == "not executable" else "#!/no/such/program\n")
        path.chmod(0o644 if kind == "not executable" else 0o755)
    with pytest.raises(InputError, match=r"executable|cannot be run"):
        bisect(source, script=path, options=OPTIONS)


def test_one_library_serves_all_models(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []

    def build(manifest: Any, path: Path, *_: object) -> None:
        built.append(manifest.digest)
        path.write_text(manifest.digest)

    seen = []

    def judge(self: trials.Judge, model: Path) -> Outcome:
        library = get_library_path(model)
        if library.exists():
            seen.append(library.read_text() == metadata(onnx.load(model))["onnxbolt.digest"])
        return original(self, model)

    original = trials.Judge.__call__
    monkeypatch.setattr(trials, "build", build)
    monkeypatch.setattr(bisection, "runs_kernels", lambda: True)
    monkeypatch.setattr(trials.Judge, "__call__", judge)
    found = bisect(source, script=script(tmp_path, f"sys.exit({ADDS})"), options=OPTIONS)
    assert found.kernels
    assert len(built) == 1
    assert len(seen) > 2
    assert all(seen)


@pytest.mark.parametrize("name", ["</script>", "a b", "--help", "Größe \x1b[2J"])
def test_hostile_names(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in put;.onnx"
    onnx.save(net(name), source)
    check = script(tmp_path, "sys.exit(any('Sigmoid' in op and 'Fused' in op for op in ops))")
    arguments = ["bisect", str(source), "--fuse", "all", "--arch", "sm_80", "--script", str(check)]
    assert main([*arguments, "--log-format", "json"]) == 0
    out, err = capfd.readouterr()
    assert "\x1b" not in out + err
    values = json.loads(out)
    assert values["event"] == "bisection"
    assert [step["kind"] for step in values["culprits"][0]["steps"]] == [FUSION]
    assert name in values["culprits"][0]["steps"][0]["words"]


def test_the_command_line(source: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = sha256_of(source)
    arguments = ["bisect", str(source), "--fuse", "all", "--arch", "sm_80", "--seed", "3"]
    assert main([*arguments, "--opt-shapes", "x:2x16x14x14", "--rtol", "1", "--atol", "1"]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("nothing fails")
    assert "run 1: " in err
    assert sha256_of(source) == before
    assert main([*arguments, "--frozen"]) == 2
    assert main([*arguments, "--script", "/no/such/check"]) == 1


def test_no_file_is_left(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    bisect(source, options=OPTIONS)
    assert [*tmp_path.iterdir()] == [source]
