"""`onnxbolt tune`, and what it shares with `optimize --tune`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from onnxbolt.cli_base import FILE, Command, custom_ops, emit, log_format, messages
from onnxbolt.errors import InputError
from onnxbolt.options import FUSE, PRECISIONS, TRIALS, Options, seconds, shapes

INTERRUPTED = 130


class _Time(click.ParamType[float]):
    """'10m' -> 600.0"""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            return value if isinstance(value, float) else seconds(value)
        except InputError as error:
            self.fail(str(error), param, ctx)


TIME = _Time()


class _Shapes(click.ParamType[dict[str, tuple[int, ...]]]):
    """'x:[1,3]' -> {"x": (1, 3)}"""

    name = "shapes"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, tuple[int, ...]]:
        try:
            return value if isinstance(value, dict) else shapes(value)
        except InputError as error:
            self.fail(str(error), param, ctx)


def sized(function: Callable[..., Any]) -> Callable[..., Any]:
    """The flags that say for which sizes of symbolic dimensions kernels are chosen."""
    for flag, text in (
        ("--max-shapes", "The largest ones. Default: as --opt-shapes."),
        ("--opt-shapes", "The sizes that decide what is fused. Default: as --max-shapes."),
        (
            "--min-shapes",
            (
                "Inputs with symbolic dimensions: the least sizes that kernels are chosen for, e.g."
                " x:1x3x224x224,y:1x10 or x:[1,3,224,224],y:[1,10]. Default: as --opt-shapes;"
                " without any of the three, batches of 1 to 64, 8 being the opt one, images of"
                " 224x224."
            ),
        ),
    ):
        function = click.option(flag, type=_Shapes(), metavar="NAME:NxN..,..", help=text)(function)
    return function


@click.command(cls=Command)
@click.argument("source", metavar="IN.onnx", type=FILE)
@click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    default="fp16",
    show_default=True,
    help="As for `optimize`.",
)
@click.option(
    "--fuse",
    type=click.Choice(FUSE),
    default="winning",
    show_default=True,
    help="winning: ONNX Runtime is measured, too.",
)
@click.option(
    "--budget",
    type=TIME,
    metavar="TIME",
    help="At most so long, compiling included, e.g. 90s or 10m.",
)
@click.option(
    "--trials",
    type=click.IntRange(1),
    default=TRIALS,
    show_default=True,
    help="Candidates of each problem.",
)
@sized
@custom_ops
@click.option(
    "--freeze-initializers/--no-freeze-initializers", default=None, help="As for `optimize`."
)
def tune(source: Path, quiet: bool, **values: Any) -> int:
    """Measure on the local GPU what `optimize` of IN.onnx chooses from, and remember it; write
    no model."""
    from onnxbolt import pipeline
    from onnxbolt.report.render import tuning_json, tuning_text
    from onnxbolt.tune.progress import reporter

    tuning = pipeline.tune(
        source,
        options=Options(**values),
        progress=messages(quiet),
        watch=reporter(log_format(), quiet),
    )
    if not quiet:
        emit("tuning", partial(tuning_text, tuning), partial(tuning_json, tuning))
    return INTERRUPTED if tuning.ended_by == "interrupt" else 0
