"""The names of options in messages: precision='fp8' for callers from Python, --precision fp8 on the
command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_FLAGS = {
    "archs": "--arch",
    "skip_nodes": "--skip-node",
    "skip_rules": "--skip-rule",
    "only_rules": "--only-rule",
}  # arguments whose flag is not their name with hyphens
_on_command_line: ContextVar[bool] = ContextVar("on_command_line", default=False)


@contextmanager
def flags() -> Iterator[None]:
    """A context in which messages name the flags of the command line."""
    token = _on_command_line.set(True)
    try:
        yield
    finally:
        _on_command_line.reset(token)


def option(name: str, value: object = None) -> str:
    """The option that Python calls `name`, as the caller would write it, with its value unless that
    is None.

    option("precision", "bf16")   precision='bf16'   --precision bf16
    option("frozen", True)        frozen=True        --frozen
    option("verify", False)       verify=False       --no-verify
    option("min_shapes")          min_shapes         --min-shapes
    """
    if not _on_command_line.get():
        shown = str(value) if isinstance(value, Path) else value
        return (
            name
            if value is None
            else f"{name}={shown:g}"
            if isinstance(shown, float)
            else f"{name}={shown!r}"
        )
    flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
    if value is False:
        return flag.replace("--", "--no-", 1)
    return (
        flag
        if value is None or value is True
        else f"{flag} {value:g}"
        if isinstance(value, float)
        else f"{flag} {value}"
    )
