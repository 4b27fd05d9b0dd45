"""What all commands share: the flags of logging, and how files are named."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

FILE = click.Path(path_type=Path)
SEED = click.IntRange(min=0)
_LOG_FORMAT = "onnxbolt.log_format"


def printable(text: str) -> str:
    """The text with control characters spelled out, but for ends of lines: a model's names can
    hold sequences that a terminal obeys."""
    return "".join(
        character if character.isprintable() or character == "\n" else ascii(character)[1:-1]
        for character in text
    )


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
    """A range of numbers without those that are none: click takes "inf" and "nan" for numbers in
    every range."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return number


class Command(click.Command):
    """A command with the flags that every command has; of these only `quiet` reaches its
    function, `log_format()` tells another."""

    def __init__(self, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **named)
        self.params += [
            click.Option(
                ["-v", "--verbose"],
                count=True,
                help="Log what is done, twice for details; errors with a traceback.",
            ),
            click.Option(["-q", "--quiet"], is_flag=True, help="Print nothing but errors."),
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
        "A library of other custom operators that the model needs, which is loaded; may be given"
        " several times."
    ),
)


def log_format() -> str:
    """What the running command was given: "text" or "json"."""
    return str(click.get_current_context().meta[_LOG_FORMAT])


def show(text: object, err: bool = False) -> None:
    """Print a text that may have a model's names in it."""
    click.echo(printable(str(text)), err=err)


def messages(quiet: bool) -> Callable[[str], None] | None:
    """Where lines of progress go: to the standard error, as the log format says; None where
    nothing is to be said."""
    as_json = log_format() == "json"
    return (
        None
        if quiet
        else lambda text: show(
            json.dumps({"event": "message", "message": text}) if as_json else text, err=True
        )
    )


def emit(event: str, text: Callable[[], str], as_json: Callable[[], str]) -> None:
    """Print a command's result: as text, or with --log-format json as one line, the JSON object
    with its `event`."""
    show(
        json.dumps({"event": event, **json.loads(as_json())}) if log_format() == "json" else text()
    )


class Group(click.Group):
    """The group whose commands are `Command`s."""

    command_class = Command
