"""Fused nodes that are taken back out of a written model: the result computes the same, verifies,
and its library loads."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxbolt
from onnxbolt import library, undo
from onnxbolt.cli import main
from onnxbolt.codegen import artifacts
from onnxbolt.errors import InputError
from onnxbolt.graph.inlining import unfused, with_inner
from onnxbolt.inspection import inspect_model
from onnxbolt.library import manifest_of_model, metadata
from onnxbolt.library_file import Library
from onnxbolt.ops.functions import DOMAIN
from onnxbolt.runtime import get_library_path
from onnxbolt.verify import verify
from onnxbolt.verify.feeds import working_feeds
from onnxbolt.verify.session import CPU, Runner
from tests.e2e import bodies, sequence, vision
from tests.support import Net, feeds_of, run

MODELS: tuple[Callable[[], onnx.ModelProto], ...] = (
    vision.resnet,
    vision.mobilenet,
    vision.densenet,
    vision.swin,
    vision.unet,
    vision.style_transfer,
    sequence.vit,
    sequence.llama,
    sequence.bert_embedding,
    sequence.wavenet,
)


def net(last: str = "") -> onnx.ModelProto:
    """A convolution, a pooling and a product; `last` is the name of a node."""
    net = Net({"image": [2, 8, 12, 12], "tokens": [4, 64]})
    features = net.node("Relu", net.conv("image", 8, 16, 3, pads=[1, 1, 1, 1]))
    pooled = net.node("MaxPool", features, kernel_shape=[2, 2], strides=[2, 2])
    y = net.node("Relu", net.linear("tokens", 64, 32))
    net.nodes[-1].name = last or net.nodes[-1].name
    return net.model(pooled, y)


def optimized(model: onnx.ModelProto, tmp_path: Path, **choices: object) -> Path:
    out = tmp_path / "out.onnx"
    options = {"fuse": "all", "archs": "sm_80", "library": False, "verify": False, **choices}
    onnxbolt.optimize(model, out, **options)  # type: ignore[arg-type]
    return out


def fused(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in with_inner(model.graph.node) if node.domain == DOMAIN]


@pytest.mark.parametrize("build", MODELS)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_any_single_fusion_can_be_undone(
    build: Callable[[], onnx.ModelProto], arch: str, tmp_path: Path
) -> None:
    source = build()
    model = onnx.load(optimized(source, tmp_path, archs=arch))
    feeds, nodes = working_feeds(source, Runner(source, CPU), seed=0), fused(model)
    expected = run(model, feeds)
    assert nodes
    for node in nodes:
        result = undo.without(model, {node.name})
        assert len(fused(result)) == len(nodes) - 1
        assert metadata(result)["onnxbolt.digest"] == (
            manifest_of_model(result).digest if len(nodes) > 1 else ""
        )
        assert {f.name for f in result.functions} == {each.op_type for each in fused(result)}
        for got, before in zip(run(result, feeds), expected, strict=True):
            np.testing.assert_allclose(got, before, rtol=2e-2, atol=2e-2)
    kinds = {node.op_type: node.name for node in nodes}
    for name in kinds.values():
        found = verify(source, undo.without(model, {name}))
        assert found.passed, (name, found.failures)
    whole = undo.without(model, {node.name for node in nodes})
    assert verify(source, whole).passed
    assert DOMAIN not in {entry.domain for entry in whole.opset_import}
    assert len(manifest_of_model(whole).ops) == 0


def test_inner_tensors_do_not_take_names_of_the_source(tmp_path: Path) -> None:
    """Verification would take a tensor of such a name for the source's."""
    model = onnx.load(optimized(net(), tmp_path))
    names = {node.name for node in fused(model)}
    result = unfused(model, names)
    known = {name for node in model.graph.node for name in node.output}
    made = {name for node in result.graph.node for name in node.output} - known
    assert made
    assert all(any(name.startswith(f"{each}/") for each in names) for name in made)
    assert len(made) == len({node.name for node in result.graph.node} - {""}) - len(
        [n for n in result.graph.node if set(n.output) & known]
    )


def test_nodes_of_bodies(tmp_path: Path) -> None:
    source = bodies.in_branches(net())
    model = onnx.load(optimized(source, tmp_path))
    rows = inspect_model(model).nodes
    inner = next(row for row in rows if row.body and "conv0_then" in "".join(row.source_nodes))
    out = tmp_path / "undone.onnx"
    done = undo.undo(tmp_path / "out.onnx", out, nodes=inner.name)
    assert [row.name for row in done.nodes] == [inner.name]
    assert done.nodes[0].body == inner.body
    assert verify(source, onnx.load(out)).passed


def test_one_undo_after_the_other(tmp_path: Path) -> None:
    path = optimized(net(), tmp_path)
    first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
    count = len(fused(onnx.load(path)))
    assert undo.undo(path, first, nodes=["conv0"]).left == count - 1
    done = undo.undo(first, second, rules="MaxPool in NHWC")
    assert (done.left, done.library_sha256) == (count - 2, "")
    assert verify(net(), onnx.load(second)).passed
    assert metadata(onnx.load(second))["onnxbolt.convolutions"] == "fixed"
    assert metadata(onnx.load(second))["onnxbolt.cuda_graph"] == "possible"


def test_weights_in_a_file_of_their_own_stay_there(tmp_path: Path) -> None:
    path = optimized(net(), tmp_path, save_as_external_data=True)
    undo.undo(path, tmp_path / "undone.onnx", rules="gemm")
    assert (tmp_path / "undone.onnx.data").stat().st_size > 0
    for got, before in zip(
        run(tmp_path / "undone.onnx", feeds_of(net())), run(path, feeds_of(net())), strict=True
    ):
        np.testing.assert_allclose(got, before, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, "nothing to undo: give node or rule"),
        ({"nodes": "conv00"}, r"node='conv00': no fused node.*Near: conv0"),
        ({"rules": "convs"}, r"rule='convs': no fused node.*Near: conv"),
        ({"nodes": "\x1b[2J", "rules": "gemm"}, "onnxbolt inspect"),
    ],
)
def test_unknown_names_are_one_error(tmp_path: Path, asked: dict[str, str], message: str) -> None:
    path = optimized(net(), tmp_path)
    with pytest.raises(InputError, match=message):
        undo.undo(path, tmp_path / "undone.onnx", **asked)  # type: ignore[arg-type]
    assert not (tmp_path / "undone.onnx").exists()


def test_models_that_cannot_be_undone(tmp_path: Path) -> None:
    source = tmp_path / "in.onnx"
    onnx.save(net(), source)
    with pytest.raises(InputError, match="has no fused nodes, so there is nothing to undo"):
        undo.undo(source, tmp_path / "undone.onnx", nodes="conv0")
    path = optimized(net(), tmp_path)
    with pytest.raises(InputError, match="is the input itself"):
        undo.undo(path, path, nodes="conv0")
    other = onnx.load(path)
    onnx.helper.set_model_props(other, {**metadata(other), "onnxbolt.digest": "0" * 64})
    onnx.save(other, path)
    with pytest.raises(InputError, match="was written by another version of onnxbolt"):
        undo.undo(path, tmp_path / "undone.onnx", nodes="conv0")


@pytest.mark.parametrize("name", ["</script>", "a b", "--help", "Größe \x1b[2J", "x, y"])
def test_hostile_names(tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    path, out = optimized(net(last=name), tmp_path), tmp_path / "undone.onnx"
    assert main(["undo", str(path), str(out), f"--node={name}"]) == 0
    assert main(["undo", str(path), str(out), f"--node={name}", "--log-format", "json"]) == 0
    text, last = capfd.readouterr().out.strip().rsplit("\n", 1)
    assert "\x1b" not in text + last
    values = json.loads(last)
    assert values["event"] == "undone"
    assert [name in node["source_nodes"] for node in values["nodes"]] == [True]
    assert verify(net(last=name), onnx.load(out)).passed


def test_the_library_is_linked_from_cached_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No kernel is compiled again, and what is linked has the model's digest."""
    path = optimized(net(), tmp_path, library=True, archs="sm_90a")
    out = tmp_path / "undone.onnx"
    units: list[str] = []

    def compile_units(given: list[artifacts.Unit], *rest: object) -> list[Path]:
        units.extend(unit.name for unit in given if unit.arch)
        return artifacts.compile_units(given, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(library, "compile_units", compile_units)
    done = undo.undo(path, out, nodes="conv0")
    assert units == []
    assert done.library_sha256
    linked = Library(get_library_path(out), "")
    assert linked.digest == metadata(onnx.load(out))["onnxbolt.digest"]
    assert ctypes.CDLL(str(get_library_path(out))).RegisterCustomOps
    assert not any("Conv" in name for name in linked.manifest.ops)
    session = onnxruntime.InferenceSession(
        out,
        onnxbolt.session_options(out, providers=["CPUExecutionProvider"]),
        providers=["CPUExecutionProvider"],
    )
    session.run(None, feeds_of(net()))
    # the same digest as that of a library that is built anew
    library.build_for(out)
    assert Library(get_library_path(out), "").digest == linked.digest


def test_kernels_that_the_cache_lacks_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects come from the units of the library before, else from the tuner, else from nvcc."""
    before = manifest_of_model(onnx.load(optimized(net(), tmp_path)))
    wanted = before.instances
    a, b = Path("a.o"), Path("b.o")
    for units, tuned, expected in (
        (dict.fromkeys(wanted, a), {}, dict.fromkeys(wanted, a)),
        ({wanted[0]: a}, dict.fromkeys(wanted, b), dict.fromkeys(wanted, b)),
        ({wanted[0]: a}, {}, {wanted[0]: a}),
    ):
        monkeypatch.setattr(undo, "cached", lambda _, units=units: units)
        monkeypatch.setattr(undo, "compiled", lambda _, tuned=tuned: tuned)
        assert undo._objects(before, before) == expected
