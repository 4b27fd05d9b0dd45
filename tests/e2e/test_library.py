"""The main job with a real compiler: one kernel of each family for sm_80 and sm_90a, and the
model runs without a GPU."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime
import pytest

import onnxbolt
from onnxbolt.codegen.artifacts import compile_units
from onnxbolt.codegen.nvcc import find_toolchain
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import EPILOGUES
from onnxbolt.families import named
from onnxbolt.kernel_names import kernel_names
from onnxbolt.library import build_for, manifest_of_model, units
from onnxbolt.library_file import Library
from onnxbolt.tolerances import MODEL, relative_l2
from tests.codegen.compilation import slow_code
from tests.support import Net, feeds_of, run

ARCHS = ("sm_80", "sm_90a")


@pytest.fixture(scope="module")
def original() -> onnx.ModelProto:
    """A convolution, a pooling and a product: the smallest model with every family."""
    net = Net({"image": ["batch", 8, 10, 10], "tokens": ["batch", 64, 128]})
    features = net.node("Relu", net.conv("image", 8, 16, 3, pads=[1, 1, 1, 1]))
    pooled = net.node("MaxPool", features, kernel_shape=[2, 2], strides=[2, 2])
    return net.model(pooled, net.node("Relu", net.linear("tokens", 128, 256)))


@pytest.fixture(scope="module")
def optimized(original: onnx.ModelProto, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("e2e") / "out.onnx"
    assert onnxbolt.optimize(original, out, archs=ARCHS, fuse="all").passed
    return out


def test_library_holds_each_family_for_each_architecture(optimized: Path) -> None:
    manifest = manifest_of_model(onnx.load(optimized))
    held = {(instance.config.family, instance.config.arch) for instance in manifest.instances}
    assert {(family, 80) for family in (named("gemm_2x"), named("conv_2x"), named("pool"))} <= held
    assert (named("pool"), 90) in held
    for kinds in (
        {named("gemm_2x"), named("gemm_3x"), named("gemm_sm90")},
        {named("conv_2x"), named("conv_sm90"), named("halo_sm90")},
    ):
        assert any((family, 90) in held for family in kinds)


def test_its_kernels_do_not_spill(optimized: Path) -> None:
    """They are what tests/codegen/test_compile.py need not compile again."""
    cuda = [unit for unit in units(manifest_of_model(onnx.load(optimized))) if unit.arch]
    assert len(cuda) >= 4
    for compiled in compile_units(cuda, find_toolchain()):  # from the cache
        assert slow_code(compiled) == []


def test_kernels_are_found_by_the_names_that_profilers_print(optimized: Path) -> None:
    manifest = manifest_of_model(onnx.load(optimized))
    content = onnxbolt.get_library_path(optimized).read_bytes()
    names = kernel_names(content, manifest.instances)
    fused = [instance for instance in manifest.instances if instance.chain]
    assert len(fused) >= 4
    for instance in fused:
        numbers = ", ".join(f"(long){number}" for number in instance.config.row())
        assert f"Config<{numbers}>" in names[instance]
        assert all(f"::{EPILOGUES[step].functor}" in names[instance] for step in instance.chain)
    assert len(set(names.values())) == len(names)


def test_library_and_model_carry_the_same_digest(optimized: Path) -> None:
    library = Library(onnxbolt.get_library_path(optimized), remedy="")
    assert library.digest == manifest_of_model(onnx.load(optimized)).digest
    assert library.manifest.archs == (80, 90)


def test_same_script_runs_without_a_gpu(original: onnx.ModelProto, optimized: Path) -> None:
    options = onnxbolt.session_options(optimized, providers=["CPUExecutionProvider"])
    session = onnxruntime.InferenceSession(optimized, options, providers=["CPUExecutionProvider"])
    for batch in (1, 3):
        feeds = feeds_of(original, batch)
        for expected, got in zip(run(original, feeds), session.run(None, feeds), strict=True):
            assert got.dtype == expected.dtype
            assert relative_l2(got, expected) <= MODEL[DType.F16]


def test_library_can_be_built_later(
    original: onnx.ModelProto, optimized: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.onnx"
    onnxbolt.optimize(original, out, archs=ARCHS, fuse="all", library=False)
    assert out.read_bytes() == optimized.read_bytes()
    assert build_for(out) == onnxbolt.get_library_path(out)
    assert (
        Library(build_for(out), remedy="").digest
        == Library(onnxbolt.get_library_path(optimized), remedy="").digest
    )
