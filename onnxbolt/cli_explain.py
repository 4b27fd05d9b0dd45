"""`onnxbolt explain`: what would make a model faster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnxbolt.cli_base import FILE, Command, custom_ops, emit, messages
from onnxbolt.cli_options import planning, sized
from onnxbolt.errors import AdviceError
from onnxbolt.options import Options

if TYPE_CHECKING:
    from onnxbolt.advice import Explanation


@click.command(cls=Command)
@click.argument("source", metavar="IN.onnx", type=FILE)
@click.option(
    "--node",
    "nodes",
    metavar="NAME",
    multiple=True,
    help="Explain this source node alone. May be given several times.",
)
@click.option(
    "--measure",
    is_flag=True,
    help="Also compile the changed models, and time them on the local GPU.",
)
@click.option(
    "--write-model",
    metavar="OUT.onnx",
    type=FILE,
    help="Write the model with the advice followed. New weights are zero, or drawn from a seed.",
)
@planning
@sized
@custom_ops
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option("--sarif", "as_sarif", is_flag=True, help="Print a SARIF 2.1.0 log instead of text.")
def explain(
    source: Path,
    nodes: tuple[str, ...],
    measure: bool,
    write_model: Path | None,
    as_json: bool,
    as_sarif: bool,
    quiet: bool,
    **values: Any,
) -> None:
    """Explain what is not fused or not at its best, and what would change it.

    Changes of the model are tried on copies: each is planned again, and both predicted times of the
    whole model are compared. A change that saves less than 3% is no advice. The exit code is 1 if
    --write-model finds no advice to follow; the explanation is printed all the same.
    """
    from onnxbolt.advice import explain as explained
    from onnxbolt.advice import words

    if as_json and as_sarif:
        raise click.UsageError("--json and --sarif are two forms of the same: give one of them.")
    if values["frozen"] and not values["lock"]:
        raise click.UsageError("--frozen needs --lock FILE, the lock file to read.")
    forms = {as_json: words.as_json, as_sarif: words.sarif}
    form = forms.get(True, words.text)

    def show(found: Explanation) -> None:
        if not quiet:
            emit("explanation", lambda: form(found), lambda: words.as_json(found))

    try:
        found = explained(
            source,
            nodes=nodes,
            measure=measure,
            write_model=write_model,
            options=Options(verify=False, **values),
            progress=messages(quiet or as_json or as_sarif),
        )
    except AdviceError as error:
        show(error.explanation)
        raise
    show(found)
