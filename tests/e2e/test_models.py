"""Small networks of many kinds through the main job, each as deployers would: no exception,
valid, right, and the same bytes again."""

from __future__ import annotations

import inspect
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import onnx
import pytest
from onnx import ModelProto, TensorProto

import onnxbolt
from onnxbolt.graph.importer import newest_versions
from onnxbolt.report.coverage import coverage
from onnxbolt.report.products import products
from tests.conftest import ROOT
from tests.e2e import sequence, structure, vision
from tests.e2e.checking import ARCHS, HOPPER, check
from tests.support import Net

Build = Callable[[], ModelProto]
WAYS = list(itertools.product(("keep", "fp16", "bf16"), ("all", "winning")))


def builders(*modules: ModuleType) -> dict[str, Build]:
    """The public functions of the modules."""
    found = (
        item
        for module in modules
        for item in inspect.getmembers(module, inspect.isfunction)
        if item[1].__module__ == module.__name__
    )
    return {name: function for name, function in found if not name.startswith("_")}


MODELS = builders(vision, sequence, structure)


@pytest.mark.parametrize("name", MODELS)
def test_model(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    for precision, fuse in WAYS:
        check(model, tmp_path, precision, fuse)
    check(model, tmp_path, "fp16", "all", HOPPER)


@pytest.mark.parametrize(
    "name", ["resnet", "repvgg", "yolo", "deeplab", "vit", "gpt", "llama", "wavenet", "recommender"]
)
def test_all_products_with_weights_of_ordinary_networks_are_fused(name: str) -> None:
    model = MODELS[name]()
    report = onnxbolt.optimize(model, fuse="all", library=False, verify=False, archs=ARCHS)
    weighted = [product for product in products(model, {}) if product.weighted]
    assert (
        coverage(weighted, {source for node in report.fused for source in node.source_nodes}) == 1
    )


@pytest.mark.parametrize("opset", range(11, newest_versions()[0] + 1))
def test_opset(opset: int, tmp_path: Path) -> None:
    net = Net({"x": (2, 3, 12, 12)}, opset=opset)
    y = net.node("Relu", net.batchnorm(net.conv("x", 3, 6, 3, pads=[1] * 4), 6))
    y = net.node(
        "Clip",
        net.conv(net.node("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2]), 6, 9),
        net.const(0.0),
        net.const(6.0),
    )
    scores = net.node(
        "Gemm",
        net.node("Flatten", net.node("GlobalAveragePool", y)),
        net.normal(4, 9),
        net.normal(4),
        transB=1,
    )
    check(net.model(net.node("Softmax", scores, axis=1)), tmp_path, "fp16", "all")


def test_weights_of_few_bits_are_untouched(tmp_path: Path) -> None:
    model = structure.quantized_island()
    onnxbolt.optimize(model, tmp_path / "out.onnx", fuse="all", library=False, verify=False)
    narrow = (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT4)
    before, after = (
        {t.name: t for t in m.graph.initializer if t.data_type in narrow}
        for m in (model, onnx.load(tmp_path / "out.onnx"))
    )
    assert before == after


def test_another_process_writes_the_same_bytes(tmp_path: Path) -> None:
    """Sets and dictionaries of strings are in another order there; poolings of several
    alignments are instances of one template."""
    names = ("unet", "attention_gates", "gpt", "shared_weights")
    program = (
        "import sys, onnxbolt\nfor p in sys.argv[1:]: onnxbolt.optimize(p, p + '.out', fuse='all',"
        " library=False, verify=False)"
    )
    written = []
    for seed in ("1", "2"):
        paths = [tmp_path / f"{name}.onnx" for name in names]
        for name, path in zip(names, paths, strict=True):
            onnx.save(MODELS[name](), path)
        subprocess.run(
            [sys.executable, "-c", program, *paths],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
        )
        written.append([path.with_name(path.name + ".out").read_bytes() for path in paths])
    assert written[0] == written[1]


def test_a_thousand_nodes_take_seconds() -> None:
    net = Net({"x": (1, 16, 16, 16)})
    y = "x"
    for _ in range(170):
        inner = net.node("Relu", net.batchnorm(net.conv(y, 16, 16, 3, pads=[1] * 4), 16))
        inner = net.batchnorm(net.conv(inner, 16, 16, 3, pads=[1] * 4), 16)
        y = net.node("Relu", net.node("Add", inner, y))
    model = net.model(y)
    assert len(model.graph.node) > 1000
    start = time.process_time()
    report = onnxbolt.optimize(model, fuse="all", library=False, verify=False, archs=ARCHS)
    assert time.process_time() - start < 10
    assert len(report.fused) == 340
