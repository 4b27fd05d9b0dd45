"""Import rules that the contracts of import-linter (pyproject.toml) cannot express."""

from __future__ import annotations

import subprocess
import sys

import grimp
import pytest

GRAPH = grimp.build_graph("onnxbolt", cache_dir=None)
# with the reason
FROM_THEIR_PACKAGE = {
    # archs/__init__.py loads its modules when they are asked for, by their numbers
    *((module, "onnxbolt.archs") for module in GRAPH.find_children("onnxbolt.archs")),
    # a command of its own
    ("onnxbolt.families.__main__", "onnxbolt.families"),
    # the type of what is rendered
    ("onnxbolt.report.render", "onnxbolt.report"),
}
BESIDE_FAMILIES = {"__main__", "base", "blocks", "row"}
HEAVY = {"click", "jinja2", "onnx", "onnx_graphsurgeon", "rich"}


def _families() -> set[str]:
    return {
        child
        for child in GRAPH.find_children("onnxbolt.families")
        if child.rpartition(".")[2] not in BESIDE_FAMILIES
    }


def test_no_module_imports_the_package_that_it_is_in() -> None:
    """The package imports its modules, so this would be a cycle, which import-linter's contract for
    cycles among siblings does not see."""
    found = {
        (module, imported)
        for module in GRAPH.modules
        for imported in GRAPH.find_modules_directly_imported_by(module)
        if module.startswith(f"{imported}.")
    }
    assert not found - FROM_THEIR_PACKAGE


def test_kernel_families_do_not_import_each_other() -> None:
    families = _families()
    assert len(families) > 20
    for family in families:
        assert not families & GRAPH.find_modules_directly_imported_by(family)


@pytest.mark.parametrize("module", ["onnxbolt.runtime", "onnxbolt.tune.worker"])
def test_deployment_and_worker_start_without_the_optimizer(module: str) -> None:
    """By a process of their own: packages around a module are imported with it."""
    program = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert "onnxbolt" in printed.split()
    assert not HEAVY & set(printed.split())
