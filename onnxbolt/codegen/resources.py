"""Where templates/ and custom_ops/ lie: in the repository of a checkout, inside the package of
an installed wheel."""

from __future__ import annotations

from pathlib import Path

from onnxbolt.errors import ToolchainError

_PACKAGE = Path(__file__).resolve().parents[1]


def resource_dir(name: str) -> Path:
    """The directory of the sources `name` ("templates" or "custom_ops"); ToolchainError where
    the installation lacks it."""
    for parent in (_PACKAGE, _PACKAGE.parent):
        if (parent / name).is_dir():
            return parent / name
    raise ToolchainError(
        f"{name}/ is missing beside {_PACKAGE}: the installation is incomplete; reinstall onnxbolt"
    )
