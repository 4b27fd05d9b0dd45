"""`onnxbolt tune`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from onnxbolt.cli_base import FILE, Command, custom_ops, emit, log_format, messages
from onnxbolt.cli_options import COST_MODEL, measuring, sized
from onnxbolt.options import FUSE, PRECISIONS, Options

INTERRUPTED = 130


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
@measuring()
@COST_MODEL
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
