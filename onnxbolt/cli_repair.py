"""`onnxbolt undo`, `bisect` and `doctor`: for models and machines with which something is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from onnxbolt.cli_base import FILE, Command, emit, messages
from onnxbolt.cli_options import TIME, comparison, planning, sized
from onnxbolt.errors import OnnxboltError
from onnxbolt.options import Options


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


@click.command(cls=Command)
@click.argument("source", metavar="ORIGINAL.onnx", type=FILE)
@click.option(
    "--script",
    metavar="CHECK",
    type=FILE,
    help=(
        "Program that judges a model instead of `onnxbolt verify`. It gets the model's path, and"
        " exits with 0 if the model is good, with 125 if it cannot be judged, and with any other"
        " code if it is bad."
    ),
)
@click.option(
    "--timeout",
    type=TIME,
    default="10m",
    show_default=True,
    metavar="TIME",
    help="A run that takes longer is bad.",
)
@planning
@sized
@click.option("--no-library", is_flag=True, help="Compile nothing: function bodies run.")
@comparison
def bisect(
    source: Path,
    script: Path | None,
    timeout: float,
    no_library: bool,
    quiet: bool,
    **values: Any,
) -> None:
    """Find the step of `optimize` that makes verification fail.

    Steps are taken one after the other: passes of canonicalization, precision, layouts, then each
    fused node. Each run is a process of its own, so that crashes and hangs are found, too. Give the
    options with which `optimize` fails.
    """
    from onnxbolt.bisection import bisect as search

    if values["frozen"] and not values["lock"]:
        raise click.UsageError("--frozen needs --lock FILE, the lock file to read.")
    found = search(
        source,
        script=script,
        timeout=timeout,
        options=Options(library=not no_library, **values),
        progress=messages(quiet),
    )
    if not quiet:
        emit("bisection", found.text, found.json)


@click.command(cls=Command)
@click.argument("model", metavar="[OPTIMIZED.onnx]", type=FILE, required=False)
def doctor(model: Path | None, quiet: bool) -> int:
    """Examine this machine, and an optimized model with its library.

    Each finding has a remedy. The exit code is 1 if something is broken.
    """
    from onnxbolt.doctor import diagnose

    found = diagnose(model)
    if not quiet:
        emit("diagnosis", found.text, found.json)
    return 0 if found.sound else OnnxboltError.exit_code
