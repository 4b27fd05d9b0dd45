"""The list of layout rules is complete, and layout/ needs no rewriter."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

from onnxbolt.graph.edit import Node
from onnxbolt.layout import rules
from onnxbolt.layout.rules import rule_for


def test_every_rule_is_listed() -> None:
    names = {info.name for info in pkgutil.iter_modules(rules.__path__)}
    assert {module.__name__.rpartition(".")[2] for module in rules._MODULES} == names
    for module in rules._MODULES:
        for op in module.OPS:
            assert rule_for(Node(op)) is module.rule


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
