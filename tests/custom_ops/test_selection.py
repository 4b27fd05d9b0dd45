"""Selection among a library's kernels: by the GPU's architecture, and by the op's types and
epilogue."""

from __future__ import annotations

from collections.abc import Iterator

import onnxruntime as ort
import pytest

from onnxbolt.library_file import Library
from tests import library_fixtures as fx


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[fx.HostLibrary]:
    """Kernels for one op type, of three architectures; another op type has none, though its
    configurations are the same."""
    path = tmp_path_factory.mktemp("selection") / "host.onnxbolt.so"
    built = fx.host_library(
        path, (fx.GEMM, fx.GEMM_ADD), archs=(80, 86, 90), without=(fx.GEMM_ADD,)
    )
    yield built
    built.machine()


@pytest.mark.parametrize(("sm", "arch"), [(80, 80), (86, 86), (87, 86), (89, 86), (90, 90)])
def test_the_nearest_older_architecture_of_the_gpu_s_generation_runs(
    library: fx.HostLibrary, sm: int, arch: int
) -> None:
    library.machine(sm=sm)
    assert Library(library.path, "").probe(0) == (arch, "")


@pytest.mark.parametrize("sm", [70, 75, 92, 100, 120])
def test_no_other_generation_s_kernels_run(library: fx.HostLibrary, sm: int) -> None:
    """Nor sm_90a's on what comes behind it, whose instructions are its own."""
    library.machine(sm=sm)
    arch, reason = Library(library.path, "").probe(0)
    assert arch == 0
    assert f"is sm_{sm} and the library holds kernels for sm_90a, sm_86, sm_80" in reason


def test_a_kernel_with_another_epilogue_is_none(library: fx.HostLibrary) -> None:
    library.machine()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(str(library.path))
    model = fx.fused_model(fx.GEMM_ADD, [7, 24], (16, 24), [[16], [7, 16]], epilogue_params=[0.25])
    with pytest.raises(Exception, match=r'no kernel sm_80 .* epilogue "Bias,Add,LeakyRelu"'):
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
