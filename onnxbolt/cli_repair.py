"""`onnxbolt undo`: for models and machines with which something is wrong."""

from __future__ import annotations

from pathlib import Path

import click

from onnxbolt.cli_base import FILE, Command, emit, messages


@click.command(cls=Command)
@click.argument("model", metavar="OPTIMIZED.onnx", type=FILE)
@click.argument("out", metavar="OUT.onnx", type=FILE)
@click.option(
    "--node",
    "nodes",
    metavar="NAME",
    multiple=True,
    help=(
        "Undo the fused node NAME, the one that replaces the source node NAME, or the one that"
        " stands for the tensor NAME. May be given several times."
    ),
)
@click.option(
    "--rule",
    "rules",
    metavar="RULE",
    multiple=True,
    help=(
        "Undo all fused nodes of this rule, as `onnxbolt inspect` names it, or of all rules that"
        " begin with this word. May be given several times."
    ),
)
@click.option("--no-library", is_flag=True, help="Write only the model.")
def undo(
    model: Path,
    out: Path,
    nodes: tuple[str, ...],
    rules: tuple[str, ...],
    no_library: bool,
    quiet: bool,
) -> None:
    """Replace fused nodes of an optimized model by their function bodies.

    OUT.onnx gets a library if OPTIMIZED.onnx has one beside it. Its kernels are linked from cached
    objects, and compiled only where the cache lacks them.
    """
    from onnxbolt import undo as undoing

    done = undoing.undo(
        model, out, nodes=nodes, rules=rules, library=not no_library, progress=messages(quiet)
    )
    if not quiet:
        emit("undone", done.text, done.json)
