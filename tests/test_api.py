"""The package's public names, and nothing else."""

from __future__ import annotations

import importlib.metadata

import pytest

import onnxbolt


def test_public_names() -> None:
    assert (
        dir(onnxbolt)
        == sorted(onnxbolt.__all__)
        == [
            "AccuracyError",
            "BuildError",
            "CoverageError",
            "FrozenError",
            "InputError",
            "LibraryError",
            "OnnxboltError",
            "OnnxboltWarning",
            "OpsetError",
            "Options",
            "Report",
            "SpeedError",
            "ToolchainError",
            "__version__",
            "cuda_graph_obstacle",
            "cuda_provider",
            "get_library_path",
            "optimize",
            "session_options",
        ]
    )


@pytest.mark.parametrize("name", onnxbolt.__all__)
def test_each_name_is_there(name: str) -> None:
    assert name == "__version__" or getattr(onnxbolt, name).__name__ == name


def test_version() -> None:
    assert onnxbolt.__version__ == importlib.metadata.version("onnxbolt")


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'onnxbolt' has no attribute 'compile'"):
        _ = onnxbolt.compile
