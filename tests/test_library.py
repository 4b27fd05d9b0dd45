"""The manifest and what is generated from it: the same for the same input, whole from a written
model, and a library that loads."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.metadata
import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxbolt import library
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.errors import InputError
from onnxbolt.families import named, only
from onnxbolt.library import build, build_for, generated_sources, make_manifest, manifest_of_model
from onnxbolt.library_file import Library, LibraryManifest
from onnxbolt.opspec import OpSpec, ops_from_json, ops_to_json
from tests import library_fixtures as fx

GEMM = OpSpec(
    "FusedGemm_Bias_Add_Relu_CastF32_f16",
    "gemm",
    DType.F16,
    DType.F32,
    ("Bias", "Add", "Relu", "CastF32"),
)
POOL = OpSpec("AveragePool_nhwc_f16", "average_pool", DType.F16, DType.F16)
ATTENTION = OpSpec("FusedAttention_kept_f16", "attention", DType.F16, DType.F16, letters="ttb")
HOSTILE_NAME = "a $(touch ran) `touch ran`; touch ran '\" \\"


def instances(count: int, arch: int = 80) -> list[Instance]:
    configs = (fx.config(named("gemm_2x"), arch, stages=3 + i) for i in range(count))
    return [GEMM.instance(config) for config in configs]


def test_manifest_does_not_depend_on_order() -> None:
    pools = [POOL.instance(fx.config(named("pool"), arch)) for arch in (80, 90)]
    one = make_manifest([GEMM, POOL], [*instances(8), *pools])
    other = make_manifest([POOL, GEMM, GEMM], [*reversed(pools), *reversed(instances(8)), *pools])
    assert one == other
    assert one.archs == (80, 90)
    assert generated_sources(one) == generated_sources(other)


def test_digest_covers_kernels_and_ops() -> None:
    manifests = [
        make_manifest([GEMM], instances(2)),
        make_manifest([GEMM], instances(3)),
        make_manifest([GEMM, POOL], instances(2)),
        make_manifest([dataclasses.replace(GEMM, name="Other")], instances(2)),
    ]
    assert len({manifest.digest for manifest in manifests}) == len(manifests)


def test_digest_covers_the_sources_that_are_not_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    before = make_manifest([GEMM], instances(1)).digest
    monkeypatch.setattr(library, "kernel_sources_digest", lambda _: "another")
    assert make_manifest([GEMM], instances(1)).digest != before


def test_units_hold_one_target_and_few_kernels() -> None:
    sources = generated_sources(make_manifest([GEMM], [*instances(13), *instances(2, arch=86)]))
    kernels = {
        name: text.count("Registered<") for name, text in sources.items() if name.endswith(".cu")
    }
    assert kernels == {
        "gemm_2x_sm80_0.cu": 5,
        "gemm_2x_sm80_1.cu": 5,
        "gemm_2x_sm80_2.cu": 3,
        "gemm_2x_sm86_0.cu": 2,
    }


def test_manifest_source_describes_the_ops() -> None:
    manifest = make_manifest([GEMM, POOL], instances(1))
    text = generated_sources(manifest)["manifest.cc"]
    assert (
        '{"FusedGemm_Bias_Add_Relu_CastF32_f16", "gemm", 2, 10, 1, "Bias,Add,Relu", "vt", 0,'
        " false, false, false, 0, 0}," in text
    )
    assert (
        '{"AveragePool_nhwc_f16", "average_pool", 1, 10, 10, "", "", 0, false, false, false, 0, 0},'
        in text
    )
    summary = json.loads(text.split('R"json(')[1].split(')json"')[0])
    assert summary == {
        "format": 1,
        "digest": manifest.digest,
        "archs": [80],
        "ops": [POOL.name, GEMM.name],
    }


def test_op_that_is_described_twice() -> None:
    with pytest.raises(InputError, match="is described twice, differently"):
        make_manifest([GEMM, dataclasses.replace(GEMM, element=DType.BF16)], [])


def test_more_operands_than_a_launch_can_carry() -> None:
    with pytest.raises(
        InputError, match="takes more operands than a kernel can: 4 vectors and 2 tensors"
    ):
        dataclasses.replace(GEMM, chain=("Add", "Mul", "Add"))


@pytest.mark.parametrize(
    "step", ["LayerNorm", "RmsNorm", "Moments", "FoldedLayerNorm", "FoldedRmsNorm"]
)
def test_steps_that_are_gone_are_one_clear_error(step: str) -> None:
    with pytest.raises(InputError, match=rf"this version of onnxbolt does not know .*{step}"):
        dataclasses.replace(GEMM, chain=("Bias", step))


def test_ops_survive_json() -> None:
    assert ops_from_json(ops_to_json([GEMM, POOL, GEMM])) == (POOL, GEMM)
    assert ops_from_json(ops_to_json([ATTENTION])) == (ATTENTION,)
    assert ATTENTION.operands == "ttb"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        '[{"name": "x"}]',
        ops_to_json([GEMM]).replace('"f16"', '"f8"'),
        ops_to_json([GEMM]).replace('"Relu"', '"Unheard"'),
        ops_to_json([ATTENTION]).replace('"ttb"', '"ttx"'),
        ops_to_json([ATTENTION]).replace('"ttb"', '"tttttttttb"'),
        ops_to_json([ATTENTION]).replace('"ttb"', '["t"]'),
    ],
)
def test_damaged_ops(text: str) -> None:
    with pytest.raises(InputError):
        ops_from_json(text)


def written(manifest: library.Manifest | None = None) -> onnx.ModelProto:
    """A model with one fused node, as `optimize` writes it."""
    rows = [
        fx.config(named("gemm_2x"), max_m=64),
        fx.config(named("gemm_2x"), 86, min_m=65),
    ]
    model = fx.fused_model(fx.GEMM, ["M", 8], (16, 8), [[16]], rows=rows)
    made = manifest or make_manifest([fx.GEMM.spec], [fx.GEMM.spec.instance(row) for row in rows])
    onnx.helper.set_model_props(model, library.metadata_of(made, "keep", (80, 86)))
    return model


def test_manifest_from_a_written_model() -> None:
    model = written()
    manifest = manifest_of_model(model)
    assert manifest.digest == library.metadata(model)["onnxbolt.digest"]
    assert manifest.ops == (fx.GEMM.spec,)
    assert manifest.archs == (80, 86)
    assert all(instance.config == instance.config.instance() for instance in manifest.instances)


def test_manifest_sees_subgraphs() -> None:
    model = written()
    branch = onnx.helper.make_graph(list(model.graph.node), "branch", [], [model.graph.output[0]])
    del model.graph.node[:]
    model.graph.node.append(
        onnx.helper.make_node("If", ["condition"], ["z"], then_branch=branch, else_branch=branch)
    )
    assert manifest_of_model(model).ops == (fx.GEMM.spec,)


def test_op_that_metadata_lacks() -> None:
    model = written()
    model.graph.node[0].op_type = "FusedGemm_Unheard"
    with pytest.raises(InputError, match="does not describe its op types FusedGemm_Unheard"):
        manifest_of_model(model)


@pytest.mark.parametrize(
    "numbers",
    [[80, 0], [*fx.config(named("pool")).row()[:3], 99, *fx.config(named("pool")).row()[4:]]],
)
def test_damaged_configs(numbers: list[int]) -> None:
    model = written()
    attribute = next(a for a in model.graph.node[0].attribute if a.name == "configs")
    attribute.ints[:] = numbers
    with pytest.raises(InputError, match="node the node: attribute configs is damaged"):
        manifest_of_model(model)


def test_build_of_another_versions_model(tmp_path: Path) -> None:
    path = tmp_path / "out.onnx"
    onnx.save(written(make_manifest([fx.GEMM.spec], [])), path)
    with pytest.raises(InputError, match="written by another version of onnxbolt"):
        build_for(path)


def test_build_of_a_model_without_fused_nodes(small_model: Path) -> None:
    with pytest.raises(InputError, match="no fused nodes, so it needs no library"):
        build_for(small_model)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, library.Manifest]:
    """A library with one real kernel."""
    spec = fx.ELEMENTWISE.spec  # its kernel compiles in seconds
    manifest = make_manifest([spec], [spec.instance(only("elementwise", 80))])
    directory = tmp_path_factory.mktemp("real") / HOSTILE_NAME
    directory.mkdir()
    path = directory / "out.onnxbolt.so"
    lines: list[str] = []
    build(manifest, path, lines.append)
    assert lines[-1] == "linked out.onnxbolt.so"
    # nvcc hands its arguments to a shell
    assert {file.name for file in directory.iterdir()} == {
        "out.onnxbolt.so",
        "out.onnxbolt.notice.txt",
    }
    assert not Path("ran").exists()
    return path, manifest


def test_library_tells_what_it_is(real: tuple[Path, library.Manifest]) -> None:
    path, manifest = real
    loaded = Library(path, "")
    assert loaded.manifest == LibraryManifest(
        1, manifest.digest, (80,), (fx.ELEMENTWISE.spec.name,)
    )
    short = ctypes.create_string_buffer(5)
    assert isinstance(loaded.probe(99)[1], str)
    ctypes.CDLL(str(path)).onnxbolt_probe(99, short, ctypes.c_size_t(len(short)))
    assert len(short.value) == 4  # cut, with its end


def test_cutlass_s_notice_is_beside_the_library(real: tuple[Path, library.Manifest]) -> None:
    path, _ = real
    notice = library.notice_path(path).read_text()
    (licence,) = (
        file.locate()
        for file in importlib.metadata.files("nvidia-cutlass") or ()
        if file.name == "LICENSE.txt"
    )
    ours, _, _ = Path(licence).read_text().partition("Certain files within this repository")
    assert ours.strip() in notice
    for part in ("Apache License 2.0", "CUDA runtime", "libstdc++"):
        assert part in notice


def test_library_exports_c_functions_alone(real: tuple[Path, library.Manifest]) -> None:
    loaded = ctypes.CDLL(str(real[0]))
    for name in ("RegisterCustomOps", "onnxbolt_manifest", "onnxbolt_probe"):
        assert hasattr(loaded, name)
    for name in ("cudaGetDeviceCount", "_ZN8onnxbolt14RegisterKernelEPNS_6KernelE"):
        assert not hasattr(loaded, name)


def test_bodies_run_with_the_library_on_the_cpu(real: tuple[Path, library.Manifest]) -> None:
    model = written()
    feeds = {"x": np.linspace(-1, 1, 40, dtype=np.float32).reshape(5, 8)}
    options = ort.SessionOptions()
    options.add_session_config_entry("onnxbolt.enable", "0")
    options.register_custom_ops_library(str(real[0]))
    (y,) = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    ).run(None, feeds)
    (expected,) = ort.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    ).run(None, feeds)
    np.testing.assert_array_equal(y, expected)
