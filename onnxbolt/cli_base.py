"""Types, flags and output that all commands share."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from onnxbolt import archs, names
from onnxbolt.terminal import printable

FILE = click.Path(path_type=Path)
SEED = click.IntRange(min=0)
_LOG_FORMAT = "onnxbolt.log_format"


class TextLines(logging.Formatter):
    """Log records as lines for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class JsonLines(logging.Formatter):
    """One JSON object per log record."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(
            {
                "level": record.levelname.lower(),
                "logger": record.name,
                "message": record.getMessage(),
            }
        )


def _set_up_logging(verbose: int, quiet: bool, log_format: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(
        JsonLines() if log_format == "json" else TextLines("%(levelname)s %(name)s: %(message)s")
    )
    logger = logging.getLogger("onnxbolt")
    logger.handlers = [handler]
    logger.setLevel(
        logging.ERROR if quiet else (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    )


class Finite(click.FloatRange):
    """A range of finite numbers; click's own range accepts "inf" and "nan"."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class _Arch(click.ParamType[str]):
    """An architecture's name. They are asked for when they are needed: extensions add some."""

    name = "arch"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(self._choice().convert(value, param, ctx))

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        return self._choice().get_metavar(param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return self._choice().shell_complete(ctx, param, incomplete)

    def _choice(self) -> click.Choice[str]:
        if entry_points(group=names.EXTENSIONS):  # else --help answers without the optimizer
            from onnxbolt import extensions

            extensions.load()
        return click.Choice(archs.names())


ARCH = _Arch()


class Command(click.Command):
    """A command with the flags that every command has. Its function gets `quiet` of them;
    `log_format()` returns the log format."""

    def __init__(self, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **named)
        self.params += [
            click.Option(
                ["-v", "--verbose"],
                count=True,
                help="Log each step, with -vv in detail; print errors with a traceback.",
            ),
            click.Option(["-q", "--quiet"], is_flag=True, help="Print only errors."),
            click.Option(
                ["--log-format"],
                type=click.Choice(["text", "json"]),
                default="text",
                show_default=True,
            ),
        ]

    def invoke(self, ctx: click.Context) -> Any:
        ctx.meta[_LOG_FORMAT] = ctx.params.pop("log_format")
        _set_up_logging(ctx.params.pop("verbose"), ctx.params["quiet"], ctx.meta[_LOG_FORMAT])
        return super().invoke(ctx)


custom_ops = click.option(
    "--custom-ops",
    metavar="LIB.so",
    type=FILE,
    multiple=True,
    help=(
        "Library of other custom operators that the model needs; its code is run. May be given"
        " several times."
    ),
)


def log_format() -> str:
    """The log format of the running command: "text" or "json"."""
    return str(click.get_current_context().meta[_LOG_FORMAT])


def show(text: object, err: bool = False) -> None:
    """Print a text that may contain names of a model, with control characters spelled out."""
    click.echo(printable(str(text)), err=err)


def messages(quiet: bool) -> Callable[[str], None] | None:
    """A function that prints lines of progress to standard error in the log format; None if
    `quiet`."""
    as_json = log_format() == "json"
    return (
        None
        if quiet
        else lambda text: show(
            json.dumps({"event": "message", "message": text}) if as_json else text, err=True
        )
    )


def emit(event: str, text: Callable[[], str], as_json: Callable[[], str]) -> None:
    """Print a command's result: as text, or with --log-format json as a JSON object on one line,
    to which `event` is added."""
    show(
        json.dumps({"event": event, **json.loads(as_json())}) if log_format() == "json" else text()
    )


class Group(click.Group):
    """The group whose commands are `Command`s."""

    command_class = Command
