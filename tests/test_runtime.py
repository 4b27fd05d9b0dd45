"""One deployment script for every machine: a test for each row of the table in
onnxbolt/runtime.py."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import onnxbolt
from onnxbolt import runtime
from onnxbolt.errors import InputError, LibraryError
from onnxbolt.library_file import sha256_of
from onnxbolt.runtime import (
    CUDA,
    OnnxboltWarning,
    cuda_graph_obstacle,
    cuda_provider,
    get_library_path,
    session_options,
)
from tests import library_fixtures as fx
from tests.conftest import ROOT

FEEDS = {"x": np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> fx.HostLibrary:
    return fx.host_library(tmp_path_factory.mktemp("runtime") / "host.onnxbolt.so", [fx.GEMM])


@pytest.fixture
def library(built: fx.HostLibrary) -> Iterator[fx.HostLibrary]:
    built.machine()
    yield built
    built.machine()


@pytest.fixture
def model(library: fx.HostLibrary, tmp_path: Path) -> Path:
    """A written model without its library."""
    path = tmp_path / "out.onnx"
    onnx.save(
        fx.fused_model(fx.GEMM, [4, 8], (16, 8), [[16]], digest=library.manifest.digest), path
    )
    return path


@pytest.fixture
def deployed(model: Path, library: fx.HostLibrary) -> Path:
    """The model with its library beside it."""
    get_library_path(model).symlink_to(library.path)
    return model


@pytest.fixture
def _cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """An onnxruntime that says it has the CUDA provider, and for which that loads."""
    monkeypatch.setattr(ort, "get_available_providers", lambda: [CUDA, "CPUExecutionProvider"])
    monkeypatch.setattr(runtime, "cuda_failure", lambda device: "")


def uses_kernels(model: Path, options: ort.SessionOptions, library: fx.HostLibrary) -> bool:
    """Run the model, compare with its bodies, and tell whether a kernel ran."""
    before = library.launches
    (y,) = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, FEEDS)
    used = library.launches > before
    (body,) = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, FEEDS)
    np.testing.assert_allclose(y, body, rtol=1e-5, atol=1e-5)
    return used


def falls_back(model: Path, reason: str, library: fx.HostLibrary, **arguments: Any) -> None:
    """Bodies run with exactly one warning; with strict, an error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        options = session_options(model, **arguments)
    assert [warning.category for warning in caught] == [OnnxboltWarning]
    assert caught[0].filename == __file__  # it points at who asked
    assert reason in str(caught[0].message)
    assert not uses_kernels(model, options, library)
    with pytest.raises(LibraryError, match=r"the fused kernels cannot be used"):
        session_options(model, strict=True, **arguments)


def test_cuda_provider_that_does_not_load(
    deployed: Path, library: fx.HostLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As onnxruntime-gpu without cuDNN: the provider is listed, and a session goes on without
    it."""
    monkeypatch.setattr(ort, "get_available_providers", lambda: [CUDA, "CPUExecutionProvider"])
    runtime.cuda_failure.cache_clear()
    falls_back(
        deployed,
        "this onnxruntime's CUDA provider does not load: are CUDA and cuDNN installed",
        library,
    )


def test_cuda_provider_whose_failure_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def session(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA_PATH is set but CUDA\nwas not able to be loaded")

    monkeypatch.setattr(ort, "InferenceSession", session)
    runtime.cuda_failure.cache_clear()
    assert (
        runtime.cuda_failure(0)
        == "this onnxruntime's CUDA provider does not load: CUDA_PATH is set but CUDA was not able"
        " to be loaded"
    )


@pytest.fixture(autouse=True)
def _ask_again() -> Iterator[None]:
    yield
    runtime.cuda_failure.cache_clear()


@pytest.mark.usefixtures("_cuda")
class TestTable:
    def test_held_gpu_runs_kernels(self, deployed: Path, library: fx.HostLibrary) -> None:
        assert uses_kernels(deployed, session_options(deployed, strict=True), library)
        assert uses_kernels(
            deployed,
            onnxbolt.session_options(
                str(deployed), providers=[(CUDA, {"device_id": 0})], strict=True
            ),
            library,
        )

    def test_relative_path(
        self, deployed: Path, library: fx.HostLibrary, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(deployed.parent)
        assert uses_kernels(deployed, session_options(deployed.name, strict=True), library)

    def test_no_library(self, model: Path, library: fx.HostLibrary) -> None:
        falls_back(model, "out.onnxbolt.so does not exist. Run: onnxbolt build", library)

    def test_disabled(self, deployed: Path, library: fx.HostLibrary) -> None:
        options = ort.SessionOptions()
        options.add_session_config_entry("onnxbolt.enable", "0")
        falls_back(deployed, 'onnxbolt.enable is "0"', library, options=options)

    def test_device_entry_that_is_no_number(self, library: fx.HostLibrary) -> None:
        options = ort.SessionOptions()
        options.add_session_config_entry("onnxbolt.device", "1st")
        with pytest.raises(Exception, match=r"onnxbolt\.device is '1st', which is no number"):
            options.register_custom_ops_library(str(library.path))

    def test_no_gpu(self, deployed: Path, library: fx.HostLibrary) -> None:
        library.machine(error=100, count=0)
        falls_back(deployed, "no NVIDIA GPU", library)

    def test_old_driver(self, deployed: Path, library: fx.HostLibrary) -> None:
        library.machine(error=35, driver=12020, count=0)
        falls_back(deployed, "update the driver", library)

    def test_architecture_not_held(self, deployed: Path, library: fx.HostLibrary) -> None:
        library.machine(sm=75)
        falls_back(deployed, "GPU 0 is sm_75", library)

    def test_the_library_is_told_the_device_of_the_providers(
        self, deployed: Path, library: fx.HostLibrary
    ) -> None:
        library.machine(count=2)
        options = session_options(deployed, providers=[(CUDA, {"device_id": 1})], strict=True)
        assert options.get_session_config_entry("onnxbolt.device") == "1"

    def test_device_of_the_providers_is_asked(
        self, deployed: Path, library: fx.HostLibrary
    ) -> None:
        falls_back(deployed, "there is no GPU 3", library, providers=[(CUDA, {"device_id": "3"})])

    @pytest.mark.parametrize(
        "providers", [["CPUExecutionProvider"], [("CPUExecutionProvider", {})], []]
    )
    def test_providers_without_cuda(
        self, deployed: Path, library: fx.HostLibrary, providers: list[str]
    ) -> None:
        options = session_options(deployed, providers=providers, strict=True)
        assert options.get_session_config_entry("onnxbolt.enable") == "0"
        assert not uses_kernels(deployed, options, library)

    def test_kernel_missing_for_a_held_architecture(
        self, deployed: Path, library: fx.HostLibrary
    ) -> None:
        model = onnx.load(deployed)
        attribute = next(a for a in model.graph.node[0].attribute if a.name == "configs")
        attribute.ints[13] = 7  # stages
        onnx.save(model, deployed)
        options = session_options(deployed)
        with pytest.raises(Exception, match=r"no kernel sm_80 .*Run: onnxbolt build"):
            ort.InferenceSession(deployed, options, providers=["CPUExecutionProvider"])

    def test_library_of_another_model(self, deployed: Path) -> None:
        model = onnx.load(deployed)
        onnx.helper.set_model_props(model, {"onnxbolt.digest": "0" * 64})
        onnx.save(model, deployed)
        with pytest.raises(
            LibraryError, match=r"is not the library of .*out\.onnx: .*Run: onnxbolt build"
        ):
            session_options(deployed)

    @pytest.mark.parametrize("share", [0.0, 0.0001, 0.3, 0.9, 0.9999])
    def test_library_that_is_cut_off(
        self, model: Path, library: fx.HostLibrary, share: float
    ) -> None:
        whole = library.path.read_bytes()
        get_library_path(model).write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(
            LibraryError, match=r"out\.onnxbolt\.so is damaged.*Run: onnxbolt build"
        ):
            session_options(model)

    def test_library_that_is_no_library(self, model: Path) -> None:
        get_library_path(model).write_bytes(b"words, not code" * 100)
        with pytest.raises(LibraryError, match=r"is damaged.*Run: onnxbolt build"):
            session_options(model)

    @pytest.mark.parametrize(
        ("number", "machine"), [(183, "aarch64"), (0xFFFF, "ELF machine 65535")]
    )
    def test_library_for_another_processor(
        self, model: Path, library: fx.HostLibrary, number: int, machine: str
    ) -> None:
        whole = bytearray(library.path.read_bytes())
        whole[18:20] = number.to_bytes(2, "little")
        path = get_library_path(model)
        path.write_bytes(whole)
        reason = f"out.onnxbolt.so is built for Linux on {machine}, and does not load on this"
        falls_back(model, reason, library)
        falls_back(model, reason, library, library_sha256=sha256_of(path))
        with pytest.raises(LibraryError, match="has SHA-256"):
            session_options(model, library_sha256="0" * 64)
        written = onnx.load(model)
        onnx.helper.set_model_props(written, {"onnxbolt.digest": "0" * 64})
        onnx.save(written, model)
        with pytest.raises(LibraryError, match="is not the library of"):
            session_options(model)

    def test_library_that_needs_what_the_system_lacks(
        self, model: Path, library: fx.HostLibrary, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As with a glibc that is too old."""
        get_library_path(model).symlink_to(library.path)

        def load(path: str) -> None:
            raise OSError("version `GLIBC_2.28' not found")

        monkeypatch.setattr(ctypes, "CDLL", load)
        falls_back(model, "(version `GLIBC_2.28' not found). Run: onnxbolt build", library)

    def test_sum_on_a_system_without_sealed_copies(
        self, deployed: Path, library: fx.HostLibrary, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(os, "memfd_create")
        sums = sha256_of(library.path)
        falls_back(deployed, "has no sealed copies in memory", library, library_sha256=sums)
        with pytest.raises(LibraryError, match="has SHA-256"):
            session_options(deployed, library_sha256="0" * 64)

    def test_library_without_its_functions(self, model: Path, library: fx.HostLibrary) -> None:
        whole = library.path.read_bytes().replace(b"onnxbolt_probe", b"onnxbolt_prove")
        get_library_path(model).write_bytes(whole)
        with pytest.raises(LibraryError, match=r"is damaged.*Run: onnxbolt build"):
            session_options(model)

    def test_library_of_another_maker(self, model: Path, tmp_path: Path) -> None:
        (tmp_path / "other.c").write_text("int answer(void) { return 42; }")
        subprocess.run(
            [
                "gcc",
                "-shared",
                "-fPIC",
                str(tmp_path / "other.c"),
                "-o",
                str(get_library_path(model)),
            ],
            check=True,
        )
        with pytest.raises(LibraryError, match=r"not an onnxbolt library: it has no manifest"):
            session_options(model)

    def test_bytes_and_a_library_elsewhere(self, model: Path, library: fx.HostLibrary) -> None:
        data = model.read_bytes()
        assert uses_kernels(
            model, session_options(data, library=library.path, strict=True), library
        )
        with pytest.raises(LibraryError, match=r"given as bytes"):
            session_options(data, strict=True)


def test_onnxruntime_without_cuda(deployed: Path, library: fx.HostLibrary) -> None:
    falls_back(deployed, "install onnxruntime-gpu", library)


def test_model_without_fused_nodes(small_model: Path) -> None:
    given = ort.SessionOptions()
    assert session_options(small_model, strict=True, options=given) is given


def test_library_path() -> None:
    assert (
        get_library_path("a/out.onnx")
        == onnxbolt.get_library_path(Path("a/out.onnx"))
        == Path("a/out.onnxbolt.so")
    )


@pytest.mark.usefixtures("_cuda")
def test_a_copied_pair_is_as_good(deployed: Path, library: fx.HostLibrary, tmp_path: Path) -> None:
    (tmp_path / "ö ü").mkdir()
    copy = shutil.copy(deployed, tmp_path / "ö ü" / "renamed.onnx")
    shutil.copy(library.path, get_library_path(copy))
    session_options(copy, strict=True)


TURNED = """
import sys
import onnx, onnxruntime as ort
from onnx import TensorProto, helper
from onnxbolt import optimize, session_options
x, y = (
    helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 50, width])
    for name, width in (("x", 64), ("y", 96))
)
w = helper.make_tensor("w", TensorProto.FLOAT, [64, 96], [0.01] * 64 * 96)
nodes = [
    helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
    helper.make_node("MatMul", ["t", "w"], ["p"]),
    helper.make_node("Transpose", ["p"], ["y"], perm=[1, 0, 2]),
]
graph, opset = helper.make_graph(nodes, "g", [x], [y], [w]), helper.make_opsetid("", 17)
model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
path, cpu = sys.argv[1], ["CPUExecutionProvider"]
options = {"precision": "fp16", "fuse": "all", "archs": ("sm_90a",), "library": False}
assert optimize(model, path, **options).passed
ort.InferenceSession(path, session_options(path, providers=cpu), providers=cpu)
"""


def test_fp16_products_behind_a_transpose_do_not_end_the_process(tmp_path: Path) -> None:
    """ONNX Runtime 1.31's reordering of channels for the CPU crashes on them."""
    subprocess.run([sys.executable, "-c", TURNED, str(tmp_path / "out.onnx")], check=True, cwd=ROOT)


@pytest.mark.parametrize("wrong", ["xyz", "", "0" * 63, "0" * 65, "g" * 64, b"0" * 64])
def test_a_sum_that_is_none_is_refused_on_every_machine(
    deployed: Path, wrong: object, tmp_path: Path
) -> None:
    """Also where nothing would be loaded: without CUDA, and for a model without fused nodes."""
    onnx.save(
        onnx.helper.make_model(onnx.helper.make_graph([], "empty", [], [])), tmp_path / "plain.onnx"
    )
    for path, providers in (
        (deployed, ["CPUExecutionProvider"]),
        (deployed, None),
        (tmp_path / "plain.onnx", None),
    ):
        with pytest.raises(InputError, match=r"is not a SHA-256 sum \(64 hexadecimal digits\)"):
            session_options(path, providers=providers, library_sha256=wrong)  # type: ignore[arg-type]


# --- the provider


def noted(path: Path, **entries: str) -> Path:
    """A model with these metadata entries of onnxbolt."""
    model = onnx.helper.make_model(onnx.helper.make_graph([], "empty", [], []))
    onnx.helper.set_model_props(model, {f"onnxbolt.{key}": value for key, value in entries.items()})
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(
    ("convolutions", "inputs", "search"),
    [
        ("fixed", "fixed", "EXHAUSTIVE"),
        ("fixed", "open", "EXHAUSTIVE"),  # behind a resizing to one size, say
        ("open", "open", "DEFAULT"),
        ("open", "fixed", "DEFAULT"),  # behind a selection of boxes, say
        # function bodies convolve where there is no library
        ("none", "fixed", "EXHAUSTIVE"),
        ("none", "open", "DEFAULT"),
    ],
)
def test_the_search_for_algorithms_suits_what_is_left(
    convolutions: str, inputs: str, search: str, tmp_path: Path
) -> None:
    path = noted(tmp_path / "out.onnx", convolutions=convolutions, inputs=inputs)
    for model in (path, str(path), path.read_bytes()):
        assert cuda_provider(model, 2) == (
            CUDA,
            {"device_id": "2", "cudnn_conv_algo_search": search},
        )


def test_options_of_the_caller_count(tmp_path: Path) -> None:
    path = noted(tmp_path / "out.onnx", convolutions="open", inputs="open")
    name, options = cuda_provider(
        path, prefer_nhwc=True, gpu_mem_limit=2**31, cudnn_conv_algo_search="HEURISTIC"
    )
    assert (name, options) == (
        CUDA,
        {
            "device_id": "0",
            "cudnn_conv_algo_search": "HEURISTIC",
            "prefer_nhwc": "1",
            "gpu_mem_limit": "2147483648",
        },
    )
    with pytest.raises(InputError, match=r"gpu_mem_limit=2000000000\.0 is no provider option"):
        cuda_provider(path, gpu_mem_limit=2e9)  # type: ignore[arg-type]


def test_an_original_gets_the_defaults_of_onnx_runtime(small_model: Path) -> None:
    with pytest.warns(OnnxboltWarning, match="does not say which convolutions") as caught:
        assert cuda_provider(small_model) == (CUDA, {"device_id": "0"})
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the caller has chosen
        _, options = cuda_provider(small_model, cudnn_conv_algo_search="DEFAULT")
    assert options["cudnn_conv_algo_search"] == "DEFAULT"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"convolutions": "some", "inputs": "open"}, "onnxbolt.convolutions is 'some', none of"),
        ({"convolutions": "none"}, "onnxbolt.inputs is '', none of fixed, open. Run: onnxbolt"),
    ],
)
def test_damaged_entries_are_an_error(
    entries: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        cuda_provider(noted(tmp_path / "out.onnx", **entries))


def test_what_is_no_model_has_no_provider(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        cuda_provider(tmp_path / "missing.onnx")


@pytest.mark.usefixtures("_cuda")
def test_the_provider_names_the_device_of_the_library(
    deployed: Path, library: fx.HostLibrary
) -> None:
    with pytest.warns(OnnxboltWarning):
        provider = cuda_provider(deployed, 0)
    options = session_options(deployed, providers=[provider], strict=True)
    assert options.get_session_config_entry("onnxbolt.device") == "0"
    assert uses_kernels(deployed, options, library)


@pytest.mark.parametrize("reason", ["", "If a decides at run time what runs"])
def test_whether_runs_can_be_captured_is_read(reason: str, tmp_path: Path) -> None:
    answer = f"impossible: {reason}" if reason else "possible"
    path = noted(tmp_path / "out.onnx", cuda_graph=answer)
    for model in (path, str(path), path.read_bytes()):
        assert onnxbolt.cuda_graph_obstacle(model) == reason


def test_of_an_original_it_is_not_known(small_model: Path) -> None:
    assert "does not say whether its runs can be captured. Run: onnxbolt optimize" in (
        cuda_graph_obstacle(small_model)
    )


@pytest.mark.parametrize(
    "answer", ["", "yes", "Possible", "impossible", "impossible: ", "impossible: \x1b[2J", "no: a"]
)
def test_a_damaged_answer_is_an_error(answer: str, tmp_path: Path) -> None:
    path = noted(tmp_path / "out.onnx", cuda_graph=answer)
    with pytest.raises(InputError, match="neither possible nor impossible: and a reason") as raised:
        cuda_graph_obstacle(path)
    assert str(raised.value).isprintable()


DEPLOYED = """
import sys
import onnxbolt
path = sys.argv[1]
name, options = onnxbolt.cuda_provider(path)
assert (name, options["cudnn_conv_algo_search"]) == ("CUDAExecutionProvider", "DEFAULT")
assert onnxbolt.cuda_graph_obstacle(path) == ""
heavy = {"click", "jinja2", "numpy", "onnx", "onnx_graphsurgeon", "onnxruntime", "rich"}
print(*sorted(heavy & {name.partition(".")[0] for name in sys.modules}))
"""


def test_the_provider_is_chosen_without_onnx_and_the_optimizer(tmp_path: Path) -> None:
    path = noted(tmp_path / "out.onnx", convolutions="open", inputs="open", cuda_graph="possible")
    printed = subprocess.run(
        [sys.executable, "-c", DEPLOYED, str(path)],
        check=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout
    assert printed == "\n"
