"""The registries of patterns name every module, and patterns know nothing of the matcher."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

from onnxbolt import patterns
from onnxbolt.epilogues import registered
from onnxbolt.patterns.anchors import anchors
from onnxbolt.patterns.epilogue import patterns_of
from onnxbolt.patterns.steps import steps


def test_every_pattern_is_registered() -> None:
    names = {info.name for info in pkgutil.iter_modules(patterns.__path__)}
    modules = [importlib.import_module(f"{patterns.__name__}.{name}") for name in sorted(names)]
    beginning = {id(each) for module in modules for each in getattr(module, "ANCHORS", ())}
    continuing = {id(each) for module in modules for each in getattr(module, "STEPS", ())}
    assert beginning == {id(pattern) for pattern in anchors().values()}
    listed = {id(pattern): pattern for found in steps().values() for pattern in found}
    assert continuing <= listed.keys()
    of_entries = sum(len(list(patterns_of(entry))) for entry in registered())
    assert len(listed) == len(continuing) + of_entries


def test_patterns_import_no_matcher() -> None:
    code = """
import sys
import onnxbolt.patterns.anchors, onnxbolt.patterns.steps
print([name for name in sys.modules if name.startswith("onnxbolt.match")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
