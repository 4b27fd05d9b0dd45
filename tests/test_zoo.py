"""Models of the zoo, end to end on the CPU: right answers, coverage, no stray Transposes, and
faults that verification must find."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
from onnx import ModelProto, NodeProto

import onnxbolt
from onnxbolt.inspection import inspect_model
from onnxbolt.library import manifest_of_model
from onnxbolt.library_file import Library
from onnxbolt.report.products import products
from onnxbolt.verify import verify
from tests.conftest import ZOO
from tests.faults import fused_nodes, plant
from tests.flops import fusable_flops, run_outputs
from tests.zoo.materialize import random_inputs

Zoo = Callable[[str], ModelProto]
GRAPHS = sorted(path.name.removesuffix(".onnx") for path in ZOO.glob("*.onnx"))
QUICK = ("dcnv2.dynamo", "squeezenet1_1.ts")  # in every test run
WITH_LIBRARY = [
    f"{name}.{exporter}"
    for name in ("resnet50", "bert_base", "unet_odd_channels")
    for exporter in ("dynamo", "ts")
]
CHANNELS_LAST_THROUGHOUT = ("resnet50", "vgg16", "timm_repvgg")
COVERAGE = 0.95
FAULTS = 10


def graphs(quick: Iterable[str]) -> list[object]:
    return [pytest.param(name, marks=() if name in quick else pytest.mark.zoo) for name in GRAPHS]


@pytest.mark.parametrize("precision", ["fp16", "keep"])
@pytest.mark.parametrize("name", graphs(QUICK))
def test_all_fusions_are_right_and_cover_the_model(
    name: str, precision: str, zoo: Zoo, tmp_path: Path
) -> None:
    source, out = zoo(name), tmp_path / "out.onnx"
    report = onnxbolt.optimize(source, out, precision=precision, fuse="all", library=False)
    assert report.passed
    assert sorted(tmp_path.iterdir()) == [out]
    onnx.checker.check_model(out, full_check=True)
    # without onnxbolt, without a library
    onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])

    optimized = onnx.load(out)
    flops = fusable_flops(source, random_inputs(source))
    fused = {origin for node in inspect_model(optimized).nodes for origin in node.source_nodes}
    taken = sum(count for node, count in flops.items() if node in fused)
    assert taken / sum(flops.values()) >= COVERAGE
    everything = products(source, {})
    attended = sum(each.flops for each in everything if not each.weighted and each.node in fused)
    share = (taken + attended) / sum(each.flops for each in everything)
    assert report.coverage == pytest.approx(share, abs=0.01)
    if name.startswith(CHANNELS_LAST_THROUGHOUT):
        assert not between_convolutions(optimized, "Transpose")


@pytest.mark.parametrize("precision", ["fp16", "keep"])
# tests/e2e/test_models.py has those of small networks
@pytest.mark.parametrize("name", graphs(quick=("dcnv2.dynamo",)))
def test_winning_fusions_are_right(name: str, precision: str, zoo: Zoo, tmp_path: Path) -> None:
    assert onnxbolt.optimize(
        zoo(name), tmp_path / "out.onnx", precision=precision, library=False
    ).passed
    onnx.checker.check_model(tmp_path / "out.onnx", full_check=True)


@pytest.mark.zoo
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("precision", ["fp16", "keep"])
@pytest.mark.parametrize("name", WITH_LIBRARY)
def test_with_library(name: str, precision: str, zoo: Zoo, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    assert onnxbolt.optimize(zoo(name), out, precision=precision, fuse="all").passed
    digest = manifest_of_model(onnx.load(out)).digest
    assert Library(onnxbolt.get_library_path(out), remedy="").digest == digest


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", graphs(quick=("dcnv2.ts",)))
def test_verification_finds_a_fault_in_any_fused_node(name: str, zoo: Zoo, tmp_path: Path) -> None:
    source, out = zoo(name), tmp_path / "out.onnx"
    onnxbolt.optimize(source, out, fuse="all", library=False, verify=False)
    optimized = onnx.load(out)
    drawn = random.Random(name).sample(nodes := fused_nodes(optimized), min(FAULTS, len(nodes)))
    values = inner_values(optimized, drawn)
    for node in drawn:
        broken, fault = plant(optimized, node, values)
        result = verify(source, broken)
        if result.passed:
            # provably hidden by the activation: the node itself, on the very same inputs, answers
            # as before
            least = min(row.limit for row in result.at("model"))
            assert fault.error() < least, (
                f"{node.name}: a fault of {fault.error():.3g} was not found"
            )


def inner_values(model: ModelProto, nodes: list[NodeProto]) -> dict[str, Any]:
    """The values, on random inputs, of the tensors that nodes read and that are not
    initializers."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    feeds = random_inputs(model)
    names = sorted({name for node in nodes for name in node.input} - initializers - feeds.keys())
    return feeds | dict(zip(names, run_outputs(model, names, feeds), strict=True))


def between_convolutions(model: ModelProto, op_type: str) -> list[str]:
    """Names of the nodes of a type that lie on a way from one convolution to another."""

    def is_convolution(node: NodeProto) -> bool:
        return "Conv" in node.op_type

    after = reached(
        model.graph.node, is_convolution, lambda node: node.input, lambda node: node.output
    )
    before = reached(
        reversed(model.graph.node),
        is_convolution,
        lambda node: node.output,
        lambda node: node.input,
    )
    return [
        node.name
        for node in model.graph.node
        if node.op_type == op_type and node.name in after & before
    ]


def reached(
    nodes: Iterable[NodeProto],
    start: Callable[[NodeProto], bool],
    reads: Callable[[NodeProto], Iterable[str]],
    writes: Callable[[NodeProto], Iterable[str]],
) -> set[str]:
    """Names of the nodes that lie behind a starting node, in the order of `nodes`."""
    tensors: set[str] = set()
    names = set()
    for node in nodes:
        if behind := not tensors.isdisjoint(reads(node)):
            names.add(node.name)
        if behind or start(node):
            tensors.update(writes(node))
    return names
