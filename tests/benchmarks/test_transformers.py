"""The benchmark of PyTorch's exports, on the CPU."""

import json
import lzma
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks import exports, transformers
from benchmarks.exports import (
    EXPORTERS,
    PLAIN,
    SETS,
    STORED,
    Exported,
    feeds_for,
    fixed,
    forms,
    path_of,
    widened,
)

TINY = Exported("tiny", 4, 6, mask=True)


def tiny() -> onnx.ModelProto:
    """y = (x W) c of fp16 with symbolic sizes, a Cast to fp16 and a constant."""
    half = TensorProto.FLOAT16
    symbolic: list[str | int | None] = ["batch", "sequence", 16]
    weight = numpy_helper.from_array(np.ones((16, 16), np.float16) / 3, "weight")
    constant = numpy_helper.from_array(np.array(0.1, np.float16), "constant")
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["product"]),
        helper.make_node("Constant", [], ["c"], value=constant),
        helper.make_node("Cast", ["mask"], ["kept"], to=half),
        helper.make_node("Unsqueeze", ["kept", "last"], ["column"]),
        helper.make_node("Mul", ["product", "column"], ["masked"]),
        helper.make_node("Mul", ["masked", "c"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [
            helper.make_tensor_value_info("x", half, symbolic),
            helper.make_tensor_value_info("mask", TensorProto.INT64, symbolic[:2]),
        ],
        [helper.make_tensor_value_info("y", half, symbolic)],
        [weight, numpy_helper.from_array(np.array([-1]), "last")],
    )
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opset, ir_version=10)


def shape(value: onnx.ValueInfoProto) -> list[int]:
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


def test_sizes_take_the_place_of_symbols() -> None:
    model = fixed(tiny(), TINY.sizes)
    assert [shape(value) for value in model.graph.input] == [[4, 6, 16], [4, 6]]


def test_a_widened_model_is_the_same_one_in_fp32() -> None:
    model = widened(fixed(tiny(), TINY.sizes))
    onnx.checker.check_model(model, full_check=True)
    types = [v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)]
    assert types == [TensorProto.FLOAT, TensorProto.INT64, TensorProto.FLOAT]
    feeds = feeds_for(model, TINY)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, feeds)
    third, tenth = np.float32(np.float16(1) / 3), np.float32(np.float16(0.1))
    expected = (feeds["x"] * third).sum(-1, keepdims=True) * tenth * feeds["mask"][..., None]
    np.testing.assert_allclose(y, np.broadcast_to(expected, y.shape), rtol=1e-3, atol=1e-5)


def test_a_mask_leaves_the_first_tokens_of_each_text() -> None:
    mask = feeds_for(fixed(tiny(), TINY.sizes), TINY)["mask"]
    assert (np.diff(mask, axis=1) <= 0).all()
    assert ((mask.sum(1) >= 3) & (mask.sum(1) <= 6)).all()


def test_targets_have_names_of_their_own() -> None:
    targets = [target for group in SETS.values() for target in group]
    assert len({(target.model, target.batch) for target in targets}) == len(targets)
    assert len({target.name for target in targets}) == len(targets)


@pytest.mark.parametrize("name", SETS)
def test_each_target_is_stored_as_pytorch_exports_it(name: str) -> None:
    for target in SETS[name]:
        assert path_of(STORED, target, PLAIN).exists(), target.name


def test_a_form_that_was_not_exported_is_missing(tmp_path: Path) -> None:
    found, missing = forms(tmp_path, TINY)
    assert not found
    assert missing.keys() == EXPORTERS.keys()


def test_a_quick_run_on_the_cpu_writes_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SETS, "subgraphs", (TINY,))
    stored = lzma.compress(fixed(tiny(), TINY.sizes).SerializeToString())
    for form in (PLAIN, "TorchScript"):
        path_of(tmp_path, TINY, form).write_bytes(stored)
    out = tmp_path / "results.json"
    options = f"--set subgraphs --provider cpu --quick --fuse all --exports {tmp_path} --out {out}"
    assert transformers.main(options.split()) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["name"], row["batch"]) == ("tiny, 6 tokens", 4)
    assert row["ratio"] == pytest.approx(row["peer_us"] / row["ours_us"], rel=1e-2)
    assert 0 < row["error"] < 1e-2
    assert "torchscript_ratio" in row["values"]
    assert list(row["values"]["missing"]) == ["dynamo, opset 23"]


def test_an_unknown_model_is_one_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        transformers.main(["--exports", "any", "--models", "vit"])
    assert "choose from bert_base-32x40" in capsys.readouterr().err


def test_onnx_runtime_gets_what_its_optimizer_makes_of_each_export(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, missing = fixed(tiny(), TINY.sizes), dict[str, str]()

    def fused(exact: onnx.ModelProto, kind: str, heads: int, width: int) -> onnx.ModelProto:
        assert (kind, heads, width) == ("bert", 2, 16)
        assert exact.graph.initializer[0].data_type == TensorProto.FLOAT
        if len(missing):
            return exact
        raise RuntimeError("no such fusion")

    monkeypatch.setattr(transformers, "fused", fused)
    target = exports.Exported("tiny", 1, transformer=("bert", 2, 16))
    found = transformers._fused(target, dict.fromkeys((PLAIN, "TorchScript"), model), missing)
    assert list(found) == ["onnxruntime.transformers, TorchScript"]
    assert "no such fusion" in missing[f"onnxruntime.transformers, {PLAIN}"]
