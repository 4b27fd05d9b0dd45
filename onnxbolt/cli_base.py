"""What all commands share: the flags of logging, and how files are named."""
from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import click

FILE = click.Path(path_type=Path)


class JsonLines(logging.Formatter):
    """One JSON object per log record."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps({"level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()})


def _set_up_logging(verbose: int, quiet: bool, log_format: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if log_format == "json" else logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("onnxbolt")
    logger.handlers = [handler]
    logger.setLevel(logging.ERROR if quiet else (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)])


class Command(click.Command):
    """A command with the flags that every command has; of these only `quiet` reaches its function."""

    def __init__(self, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **named)
        self.params += [
            click.Option(["-v", "--verbose"], count=True, help="Log what is done, twice for details; errors with a traceback."),
            click.Option(["-q", "--quiet"], is_flag=True, help="Print nothing but errors."),
            click.Option(["--log-format"], type=click.Choice(["text", "json"]), default="text", show_default=True),
        ]

    def invoke(self, ctx: click.Context) -> Any:
        _set_up_logging(ctx.params.pop("verbose"), ctx.params["quiet"], ctx.params.pop("log_format"))
        return super().invoke(ctx)


class Group(click.Group):
    """The group whose commands are `Command`s."""

    command_class = Command
