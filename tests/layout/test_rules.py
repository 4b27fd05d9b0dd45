"""The list of layout rules is complete, and layout/ needs no rewriter."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

from onnxbolt.graph.edit import Node
from onnxbolt.layout import rules
from onnxbolt.layout.rules import own, rule_for
from tests.support import Net, fused


def test_every_rule_is_listed() -> None:
    names = {info.name for info in pkgutil.iter_modules(rules.__path__)}
    assert {module.__name__.rpartition(".")[2] for module in (*rules._MODULES, own)} == names
    for module in rules._MODULES:
        for op in module.OPS:
            assert own.takes(op) or rule_for(Node(op)) is module.rule


def test_what_a_fused_op_cannot_do_has_the_rule_for_ordinary_nodes() -> None:
    assert {op for module in rules._MODULES for op in module.OPS if own.takes(op)} == {
        "ReduceMean",
        "Resize",
    }
    source = Net({"x": (1, 8, 4, 4)})
    y = source.node("Relu", source.conv("x", 8, 8))
    sums = source.node("ReduceMean", y, axes=[1, 2], keepdims=1)  # no pooling
    written = fused(source.model(source.conv(sums, 1, 8)))
    (mean,) = (node for node in written.graph.node if node.op_type == "ReduceMean")
    assert list(mean.attribute[0].ints) == [1, 3]


def test_other_domains_have_no_rule() -> None:
    assert rule_for(Node("Concat", domain="com.microsoft")) is None
    assert rule_for(Node("MatMul")) is None


def test_layout_imports_no_rewriter() -> None:
    code = """
import importlib, pkgutil, sys
import onnxbolt.layout as package
for module in pkgutil.walk_packages(package.__path__, "onnxbolt.layout."):
    importlib.import_module(module.name)
print([name for name in sys.modules if name in ("onnxbolt.rewrite", "onnxbolt.plan.choose")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
