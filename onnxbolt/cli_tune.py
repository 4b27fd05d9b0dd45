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
    """Adds the flags for the sizes of symbolic dimensions that kernels are chosen for."""
    for flag, text in (
        ("--max-shapes", "Largest shapes. Default: as --opt-shapes."),
        ("--opt-shapes", "Shapes that decide what is fused. Default: as --max-shapes."),
        (
            "--min-shapes",
            (
                "Smallest shapes of inputs with symbolic dimensions, e.g."
                " x:1x3x224x224,y:1x10 or x:[1,3,224,224],y:[1,10]. Default: as"
                " --opt-shapes. If none of the three options is given: batches of 1 to 64,"
                " optimized for 8, and images of 224x224; images of open height and width: of"
                " 224x224 to 1792x1792, optimized for 448x896."
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
    help="winning: also measure ONNX Runtime's own kernels.",
)
@click.option(
    "--budget",
    type=TIME,
    metavar="TIME",
    help="Time limit, compilation included, e.g. 90s or 10m.",
)
@click.option(
    "--trials",
    type=click.IntRange(1),
    default=TRIALS,
    show_default=True,
    help="Kernels tried per problem.",
)
@click.option(
    "--strategy",
    default="",
    metavar="NAME",
    help="An extension's strategy, which chooses what is measured. Default: the tuner's own.",
)
@sized
@custom_ops
@click.option(
    "--freeze-initializers/--no-freeze-initializers", default=None, help="As for `optimize`."
)
def tune(source: Path, quiet: bool, **values: Any) -> int:
    """Measure the kernels that `optimize` would choose from.

    They are measured on the local GPU for IN.onnx, and the times are kept for later runs. No model
    is written.
    """
    from onnxbolt import pipeline
    from onnxbolt.report.render import tuning_json, tuning_text
    from onnxbolt.tune.progress import reporter

    tuning = pipeline.tune(
        source,
        options=Options(tune=True, **values),
        progress=messages(quiet),
        watch=reporter(log_format(), quiet),
    )
    if not quiet:
        emit("tuning", partial(tuning_text, tuning), partial(tuning_json, tuning))
    return INTERRUPTED if tuning.ended_by == "interrupt" else 0
