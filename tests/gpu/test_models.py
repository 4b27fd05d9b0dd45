"""The models of models/ on a GPU: right with the library, all fused nodes on CUDA, CUDA graphs,
threads, changing batch.

Compile the libraries beforehand, on all cores: `python -m tests.gpu.prepared`.
"""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import onnxbolt
from onnxbolt.opspec import configs_of_node
from onnxbolt.verify import verify
from onnxbolt.verify.feeds import graph_inputs, random_feeds
from tests.gpu import sanitizer
from tests.gpu.prepared import ARCH, CASES, SYMBOLIC, Case

pytestmark = pytest.mark.gpu
CUDA = "CUDAExecutionProvider"


@pytest.fixture(scope="session")
def optimized(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Path]:
    """The optimized model of a case, made once."""
    directory = tmp_path_factory.mktemp("models")
    made: dict[Case, Path] = {}

    def make(case: Case) -> Path:
        if case not in made:
            made[case] = case.optimize(directory)
        return made[case]

    return make


def session(path: Path, **cuda: str) -> ort.InferenceSession:
    options = onnxbolt.session_options(path, strict=True)
    return ort.InferenceSession(path, options, providers=[(CUDA, cuda)])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_fused_node_computes_its_tensor(
    case: Case, optimized: Callable[[Case], Path]
) -> None:
    path = optimized(case)
    result = verify(case.original(), path, providers=[CUDA])
    assert result.passed, result.text()
    nodes = [
        node
        for node in onnx.load(path, load_external_data=False).graph.node
        if node.domain == "com.onnxbolt"
    ]
    found = [
        {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        for node in nodes
    ]
    # for a node that writes a part of a Concat's result: that part; for merged products: each one
    tensors = {
        name.decode()
        for values in found
        for name in values.get("joined_tensors")
        or [values.get("part_tensor") or values.get("tensor", b"")]
    }
    assert "" not in tensors
    assert tensors <= {row.name for row in result.rows}


@pytest.mark.parametrize(
    "case",
    [Case("resnet50"), Case("bert_base"), Case("mobilenet_v3_large")],
    ids=lambda case: case.name,
)
def test_no_fused_node_runs_on_the_cpu(
    case: Case, optimized: Callable[[Case], Path], tmp_path: Path
) -> None:
    path = optimized(case)
    options = onnxbolt.session_options(path, strict=True)
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    profiled = ort.InferenceSession(path, options, providers=[CUDA, "CPUExecutionProvider"])
    profiled.run(None, random_feeds(case.original(), 0))
    events = json.loads(Path(profiled.end_profiling()).read_text())
    placed = {
        e["args"]["op_name"]: e["args"]["provider"]
        for e in events
        if "provider" in e.get("args", {})
    }
    types = {
        node.op_type
        for node in onnx.load(path, load_external_data=False).graph.node
        if node.domain == "com.onnxbolt"
    }
    assert {name: placed.get(name) for name in types} == dict.fromkeys(types, CUDA)


@pytest.mark.parametrize(
    "case",
    [Case("resnet50"), Case("bert_base"), Case("dcn_v2", 512), Case("repvgg_a0")],
    ids=lambda case: case.name,
)
def test_a_cuda_graph_replays_the_same_bits(case: Case, optimized: Callable[[Case], Path]) -> None:
    path, feeds = optimized(case), random_feeds(case.original(), 0)
    plain = session(path).run(None, feeds)
    graphed = session(path, enable_cuda_graph="1")
    binding = graphed.io_binding()
    inputs = [ort.OrtValue.ortvalue_from_numpy(value, "cuda", 0) for value in feeds.values()]
    outputs = [
        ort.OrtValue.ortvalue_from_shape_and_type(value.shape, value.dtype, "cuda", 0)
        for value in plain
    ]
    for name, value in zip(feeds, inputs, strict=True):
        binding.bind_ortvalue_input(name, value)
    for output, value in zip(graphed.get_outputs(), outputs, strict=True):
        binding.bind_ortvalue_output(output.name, value)
    for _ in range(100):
        for value in outputs:  # a value that is not written again shows
            value.update_inplace(np.full(value.shape(), np.nan, plain[0].dtype))
        graphed.run_with_iobinding(binding)
        for expected, value in zip(plain, outputs, strict=True):
            np.testing.assert_array_equal(value.numpy(), expected)


@pytest.mark.parametrize(
    "case", [Case("resnet18"), Case("dcn_v2", 512)], ids=lambda case: case.name
)
def test_eight_threads_share_a_session(case: Case, optimized: Callable[[Case], Path]) -> None:
    shared = session(optimized(case))
    feeds = [random_feeds(case.original(), seed) for seed in range(8)]
    alone = [shared.run(None, feed) for feed in feeds]

    def many(i: int) -> bool:
        return all(
            np.array_equal(a, b)
            for _ in range(20)
            for a, b in zip(shared.run(None, feeds[i]), alone[i], strict=True)
        )

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(many, range(8))) == [True] * 8


def assert_right_at(
    shared: ort.InferenceSession, original: onnx.ModelProto, batches: Sequence[int]
) -> None:
    """One session answers as the original does, whatever batch comes next."""
    reference = ort.InferenceSession(
        original.SerializeToString(), providers=[(CUDA, {"use_tf32": "0"})]
    )
    rng = np.random.default_rng(0)
    (name,) = (value.name for value in shared.get_inputs())
    for batch in batches:
        x = rng.standard_normal((batch, 3, 224, 224)).astype(np.float32)
        (expected,), (got,) = reference.run(None, {name: x}), shared.run(None, {name: x})
        assert np.linalg.norm(got - expected) <= 1e-2 * np.linalg.norm(expected)


def test_the_batch_may_change_from_run_to_run(optimized: Callable[[Case], Path]) -> None:
    assert_right_at(session(optimized(SYMBOLIC)), SYMBOLIC.original(), (1, 3, 17, 8, 32, 2))


def test_kernels_are_verified_at_several_sizes(optimized: Callable[[Case], Path]) -> None:
    """The least, the opt and the largest batch, and an odd one; the last line names the GPU."""
    original = SYMBOLIC.original()
    result = verify(original, optimized(SYMBOLIC))
    assert result.verdict.startswith("PASSED: kernels on NVIDIA"), result.text()
    (name,) = (value.name for value in graph_inputs(original))
    on_gpu, on_cpu = (
        {row.sizes for row in result.rows if row.provider == provider}
        for provider in ("CUDA", "CPU")
    )
    assert {f"{name}:{batch}x3x224x224" for batch in (1, 8, 9, 64)} <= on_gpu
    assert len(on_cpu) == 2


def test_tuned_for_batches_of_1_to_64_one_session_serves_all(tmp_path: Path) -> None:
    """And one beyond. The nodes carry measured kernels for several ranges, so that the run meets
    more than one of them."""
    original, path = SYMBOLIC.original(), tmp_path / "tuned.onnx"
    sizes = {"min_shapes": 1, "opt_shapes": 32, "max_shapes": 64}
    shapes: dict[str, Any] = {
        flag: {value.name: (batch, 3, 224, 224)}
        for flag, batch in sizes.items()
        for value in graph_inputs(original)
    }
    onnxbolt.optimize(
        original, path, fuse="all", archs=(ARCH,), verify=False, tune=True, budget=40.0, **shapes
    )
    nodes = [node for node in onnx.load(path).graph.node if node.domain == "com.onnxbolt"]
    assert any(len(configs_of_node(node)) > 1 for node in nodes)
    assert_right_at(session(path), original, (1, 3, 17, 32, 64, 100))


def test_an_empty_batch_gives_an_empty_answer(optimized: Callable[[Case], Path]) -> None:
    shared = session(optimized(SYMBOLIC))
    (name,) = (value.name for value in shared.get_inputs())
    (got,) = shared.run(None, {name: np.zeros((0, 3, 224, 224), np.float32)})
    assert got.shape == (0, 1000)


def test_compute_sanitizer_finds_nothing(optimized: Callable[[Case], Path]) -> None:
    sanitizer.check("memcheck", "tests.gpu.run_once", str(optimized(Case("dcn_v2", 512))))
