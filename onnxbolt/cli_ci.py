"""`onnxbolt ci`: a run of continuous integration, with all of its inputs from the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from onnxbolt.cli_base import FILE, Command, Finite, emit, messages
from onnxbolt.cli_options import choices, comparison, sized
from onnxbolt.options import Options

_PREFIX = "ONNXBOLT"


class _Lines(click.ParamType[Any]):
    """The values of a variable, one on each line, of another type."""

    def __init__(self, of: click.ParamType[Any]) -> None:
        self._of = of
        self.name = of.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self._of(value, param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        return self._of.get_metavar(param, ctx)

    def split_envvar_value(self, rv: str) -> list[str]:
        return [line for line in rv.splitlines() if line.strip()]


class _FromEnvironment(Command):
    """A command whose options have variables: --opt-shapes has ONNXBOLT_OPT_SHAPES."""

    def __init__(self, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **named, context_settings={"auto_envvar_prefix": _PREFIX})
        for option in self.params:
            if isinstance(option, click.Option):
                option.show_envvar = True
                if option.multiple:
                    option.type = _Lines(option.type)


@click.command(cls=_FromEnvironment)
@click.option(
    "--model",
    type=FILE,
    required=True,
    help="A model, or a directory of models.",
)
@click.option(
    "--lock",
    type=FILE,
    help=(
        "The model's lock file, or a directory of lock files as `optimize` of a directory writes"
        " it. Default: beside each model, NAME.onnxbolt.lock."
    ),
)
@click.option(
    "--out",
    type=FILE,
    default="onnxbolt-out",
    show_default=True,
    help="Directory for models, libraries, reports, summary.md, junit.xml and models.json.",
)
@click.option(
    "--base",
    default="",
    help=(
        "Branch or commit to compare with: lock files, predicted times, errors. The clone has to"
        " have it."
    ),
)
@click.option(
    "--max-slowdown",
    type=Finite(min=0),
    metavar="PERCENT",
    help="Exit with 4 if a predicted time is longer than the base's by more than this.",
)
@click.option(
    "--require-fused",
    type=Finite(0, 100),
    metavar="PERCENT",
    help="As for `optimize`: exit with 4 if less is fused.",
)
@click.option(
    "--step-summary",
    type=FILE,
    envvar=[f"{_PREFIX}_STEP_SUMMARY", "GITHUB_STEP_SUMMARY"],
    help="File to append the summary to.",
)
@choices
@sized
@click.option("--no-library", is_flag=True, help="Write only models and compile nothing.")
@comparison
def ci(
    model: Path,
    lock: Path | None,
    out: Path,
    base: str,
    max_slowdown: float | None,
    step_summary: Path | None,
    no_library: bool,
    quiet: bool,
    **values: Any,
) -> int:
    """Check models as a CI does: build them by their lock files alone, verify, compare.

    Every option has an environment variable, which is meant to be set instead; those that may be
    given several times take one value on each line. The exit code is the worst one of all models: 1
    error, 3 accuracy, 4 below a minimum, 5 stale lock file.
    """
    from onnxbolt import ci as runs

    if max_slowdown is not None and not base:
        raise click.UsageError("--max-slowdown compares with --base: name a branch or commit.")
    result = runs.run(
        runs.Task(model, out, lock, base, max_slowdown),
        Options(library=not no_library, **values),
        messages(quiet),
    )
    if step_summary is not None:
        runs.append_summary(result, step_summary)
    if not quiet:
        emit("models", result.text, result.models.json)
    return result.models.code
