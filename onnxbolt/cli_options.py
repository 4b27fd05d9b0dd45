"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from onnxbolt.cli_base import ARCH, FILE, SEED, Finite, custom_ops
from onnxbolt.errors import InputError
from onnxbolt.options import (
    FUSE,
    METHODS,
    PRECISIONS,
    QUANTIZED,
    TRIALS,
    latency,
    seconds,
    shapes,
)


def once(_: click.Context, __: click.Parameter, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Drops repeated values of an option."""
    return tuple(dict.fromkeys(values))


class _Time(click.ParamType[float]):
    """A time as a text that `parse` reads: '10m' -> 600.0, for example."""

    name = "time"

    def __init__(self, parse: Callable[[str], float]) -> None:
        self._parse = parse

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            return value if isinstance(value, float) else self._parse(value)
        except InputError as error:
            self.fail(str(error), param, ctx)


TIME, LATENCY = _Time(seconds), _Time(latency)


class _Count(click.ParamType[int | str]):
    """'4' -> 4, 'all' -> "all" """

    name = "count"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        if value == "all":
            return "all"
        return click.IntRange(1).convert(value, param, ctx)


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


def comparison(function: Callable[..., Any]) -> Callable[..., Any]:
    """The flags of commands that compare two models."""
    for option in (
        custom_ops,
        click.option(
            "--strict",
            is_flag=True,
            help="Also exit with 3 if the model or a part of it cannot be judged by any inputs.",
        ),
        click.option(
            "--seed", type=SEED, default=0, show_default=True, help="Seed of the random inputs."
        ),
        click.option(
            "--rtol",
            type=Finite(min=0),
            help="With --atol: also require |y - y0| <= atol + rtol |y0| of every element.",
        ),
        click.option("--atol", type=Finite(min=0), help="See --rtol."),
        click.option(
            "--inputs",
            type=FILE,
            help=(
                "Compare on these inputs (.npz, one array per graph input) instead of random ones."
            ),
        ),
    ):
        function = option(function)
    return function


_CHOICES = (
    click.option(
        "--precision",
        type=click.Choice((*PRECISIONS, *QUANTIZED)),
        default="fp16",
        show_default=True,
        help=(
            "Type of weights and compute. keep: as in the model; fp32 is multiplied as TF32. int8,"
            " fp8: products in 8 bits by --calibration, the rest in fp16. auto: for each product"
            " what gains most time for the least error, within --max-error. The last three are for"
            " `optimize` and `ci`."
        ),
    ),
    click.option(
        "--fuse",
        type=click.Choice(FUSE),
        default="winning",
        show_default=True,
        help=(
            "winning: keep only fusions that are faster than ONNX Runtime's own kernels (as"
            " measured, else as predicted). all: keep every fusion."
        ),
    ),
    click.option(
        "--skip-node",
        "skip_nodes",
        metavar="NAME",
        multiple=True,
        callback=once,
        help=(
            "Leave these nodes as they are: those that the fused node NAME would replace, the"
            " source node NAME, or the one that computes the tensor NAME. May be given several"
            " times."
        ),
    ),
    click.option(
        "--skip-rule",
        "skip_rules",
        metavar="RULE",
        multiple=True,
        callback=once,
        help=(
            "Leave the nodes of these fusions as they are: a rule as reports name it, such as"
            " conv+Bias+Relu, or its first word for all that begin with it. May be given several"
            " times."
        ),
    ),
    click.option(
        "--only-rule",
        "only_rules",
        metavar="RULE",
        multiple=True,
        callback=once,
        help="Leave the nodes of all other fusions as they are. May be given several times.",
    ),
    click.option(
        "--arch",
        "archs",
        type=ARCH,
        multiple=True,
        callback=once,
        help=(
            "GPU architecture to build kernels for; may be given several times: fusions are"
            " then chosen for all of them together. Default: the local GPU's, else sm_80 and"
            " sm_90a."
        ),
    ),
    click.option(
        "--ort-version",
        default="",
        metavar="VERSION",
        help=(
            "ONNX Runtime that will run the model, e.g. 1.31. Its CUDA kernels decide what"
            " stays in fp32. Default: the installed one."
        ),
    ),
    click.option(
        "--freeze-initializers/--no-freeze-initializers",
        default=None,
        help=(
            "Turn initializers that are also graph inputs into constants, and remove those"
            " inputs. Default: only if all initializers are inputs."
        ),
    ),
)
_CALIBRATION = (
    click.option(
        "--calibration",
        metavar="FILE.npz|DIRECTORY",
        type=FILE,
        help=(
            "With --precision int8, fp8 or auto: inputs (.npz, one array per graph input) from"
            " which scales are found. Not needed where the lock file has them."
        ),
    ),
    click.option(
        "--calibration-method",
        type=click.Choice(METHODS),
        default=METHODS[0],
        show_default=True,
        help=(
            "minmax: codes reach the largest magnitude. entropy, percentile: as"
            " onnxruntime.quantization chooses. For int8 alone."
        ),
    ),
    click.option(
        "--max-error",
        type=Finite(min=0),
        help=(
            "With --precision int8 or fp8: exit with 3 if an output differs by more from the model"
            " of floats on the calibration data, as relative L2 error. --precision auto keeps it."
        ),
    ),
    click.option(
        "--metric",
        default="",
        metavar="MODULE:FUNCTION",
        help=(
            "With --precision auto: FUNCTION(outputs, arrays) scores a batch of the calibration"
            " data, which may hold labels beside the inputs; --max-error is then by how much the"
            " mean score may fall."
        ),
    ),
)
COST_MODEL = click.option(
    "--cost-model",
    metavar="FILE",
    type=FILE,
    help="Predict times by a learned cost model, which `onnxbolt cache train` writes.",
)
_LOCK = (
    click.option(
        "--lock",
        metavar="FILE",
        type=FILE,
        help=(
            "Lock file: measured times in it are used, and this run's choices and times are written"
            " to it."
        ),
    ),
    click.option(
        "--frozen",
        is_flag=True,
        help="Take every choice from the lock file; exit with 5 if it lacks one.",
    ),
)


def choices(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the flags that decide what is fused, by which kernels, but for those of a lock file."""
    return _with(function, _CHOICES)


def planning(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the flags that decide what is fused, by which kernels."""
    return _with(function, (*_CHOICES, *_LOCK, COST_MODEL))


def calibrating(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the flags by which a model is quantized."""
    return _with(function, _CALIBRATION)


def measuring(only: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds the flags of a run of the tuner. `only` begins their help: when they count."""

    def said(text: str) -> str:
        return only + text[0].lower() + text[1:] if only else text

    options = (
        click.option(
            "--budget",
            type=TIME,
            metavar="TIME",
            help=said("Time limit, compilation included, e.g. 90s or 10m."),
        ),
        click.option(
            "--target",
            type=LATENCY,
            metavar="TIME",
            help=said("Stop as soon as the whole model takes no more than this, e.g. 0.7ms."),
        ),
        click.option(
            "--trials",
            type=click.IntRange(1),
            default=TRIALS,
            show_default=True,
            help=said("Kernels tried per problem."),
        ),
        click.option(
            "--strategy",
            default="",
            metavar="NAME",
            help=said(
                "An extension's strategy, which chooses what is measured. Default: the tuner's own."
            ),
        ),
        click.option(
            "--gpus",
            type=_Count(),
            metavar="N|all",
            default=1,
            show_default=True,
            help=said("GPUs of this machine that measure; several need onnxbolt[cluster]."),
        ),
        click.option(
            "--scheduler",
            default="",
            metavar="ADDRESS",
            help=said(
                "A dask scheduler, such as tls://host:8786, whose workers measure; needs"
                " onnxbolt[cluster]."
            ),
        ),
        click.option(
            "--insecure",
            is_flag=True,
            help=said("Take a scheduler on another machine without TLS."),
        ),
    )
    return lambda function: _with(function, options)


def _with(
    function: Callable[..., Any], options: Sequence[Callable[..., Any]]
) -> Callable[..., Any]:
    for option in reversed(options):
        function = option(function)
    return function
