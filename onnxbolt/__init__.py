"""Fuses matrix products and convolutions of an ONNX model with the operators around them into
single CUDA kernels for ONNX Runtime.

- `optimize(source, out=None, *, precision="fp16", ..)` does what the command line does. Its
  keywords are the fields of `Options`. It returns a `Report`.
- `session_options(model, ..)`, `cuda_provider(model, ..)`, `cuda_graph_obstacle(model)` and
  `get_library_path(model)` are for deployment: they import neither onnx nor the optimizer.
- The errors are those of `onnxbolt.errors`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxbolt.errors import (
        AccuracyError,
        BuildError,
        CoverageError,
        FrozenError,
        InputError,
        LibraryError,
        OnnxboltError,
        OpsetError,
        ToolchainError,
    )
    from onnxbolt.options import Options
    from onnxbolt.pipeline import optimize
    from onnxbolt.report import Report
    from onnxbolt.runtime import (
        OnnxboltWarning,
        cuda_graph_obstacle,
        cuda_provider,
        get_library_path,
        session_options,
    )
    from onnxbolt.version import __version__

__all__ = [
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

_MODULES = {
    "Options": "options",
    "optimize": "pipeline",
    "Report": "report",
    "OnnxboltWarning": "runtime",
    "cuda_graph_obstacle": "runtime",
    "cuda_provider": "runtime",
    "get_library_path": "runtime",
    "session_options": "runtime",
    "__version__": "version",
}


def __getattr__(name: str) -> Any:
    # found when asked for, so that a deployment machine never imports the optimizer
    if name not in __all__:
        raise AttributeError(f"module 'onnxbolt' has no attribute {name!r}")
    return getattr(importlib.import_module(f"onnxbolt.{_MODULES.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return __all__
