"""`onnxbolt cache`: the database of measurements, and what was compiled."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from onnxbolt.cli_base import FILE, Finite, Group, show

_CENTURY = 36500  # days; more of them lead beyond the calendar


@click.group(cls=Group)
def cache() -> None:
    """What tuning has measured, and with --compiled what was compiled: in the cache directory
    (ONNXBOLT_CACHE_DIR)."""


@cache.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option(
    "--compiled",
    is_flag=True,
    help="What was compiled instead, the least recently used first; ONNXBOLT_CACHE_SIZE limits it.",
)
def cache_list(as_json: bool, compiled: bool, quiet: bool) -> None:
    """One line per problem and machine, with the best configuration."""
    from onnxbolt.tune import listing
    from onnxbolt.tune.database import Database

    if compiled:
        if not quiet:
            show(listing.compiled_as_json() if as_json else listing.compiled_table())
        return
    with Database() as database:
        found = listing.entries(database)
    if not quiet:
        show(
            json.dumps([entry.summary() for entry in found], indent=2)
            if as_json
            else listing.table_of(found)
        )


@cache.command("show")
@click.argument("prefix", metavar="KEY-PREFIX")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def cache_show(prefix: str, as_json: bool, quiet: bool) -> None:
    """Every measurement of the one task whose key, as listed, begins with KEY-PREFIX."""
    from onnxbolt.tune import listing
    from onnxbolt.tune.database import Database

    with Database() as database:
        entry = listing.find(database, prefix)
    if not quiet:
        show(
            json.dumps(listing.details_as_json(entry), indent=2)
            if as_json
            else listing.details_of(entry)
        )


@cache.command("export")
@click.argument("path", metavar="FILE", type=FILE)
def cache_export(path: Path, quiet: bool) -> None:
    """Write all measurements to FILE as JSON lines, sorted."""
    from onnxbolt.tune.database import Database

    with Database() as database:
        database.export(path)
        if not quiet:
            show(f"{len(database)} measurements in {path}")


@cache.command("merge")
@click.argument("path", metavar="FILE", type=FILE)
def cache_merge(path: Path, quiet: bool) -> None:
    """Add the measurements of FILE, an exported file or another database."""
    from onnxbolt.tune.database import Database

    with Database() as database:
        new = database.merge(path)
        if not quiet:
            show(f"{new} new measurements of {path}; {len(database)} in all")


@cache.command("clear")
@click.option(
    "--gpu",
    metavar="NAME",
    help="Only measurements made on this GPU, named as `cache list` names it.",
)
@click.option(
    "--older-than",
    metavar="DAYS",
    type=Finite(min=0, max=_CENTURY),
    help=(
        "Only measurements of more than so many days ago; with --compiled: what was not used since."
    ),
)
@click.option(
    "--compiled", is_flag=True, help="Delete what was compiled instead; measurements stay."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def cache_clear(
    gpu: str | None, older_than: float | None, compiled: bool, yes: bool, quiet: bool
) -> None:
    """Forget measurements: all, or those that the options name."""
    from onnxbolt.codegen import cache as compiled_cache
    from onnxbolt.tune.database import Database

    if compiled and gpu is not None:
        raise click.UsageError("--gpu is for measurements: it does not go with --compiled.")
    before = None if older_than is None else datetime.now(UTC) - timedelta(days=older_than)
    if compiled:
        _ask(yes, f"Delete what was compiled in {compiled_cache.objects().parent}?")
        removed = compiled_cache.clear(before.timestamp() if before else None)
        if not quiet:
            show(
                f"{len(removed)} compiled entries deleted,"
                f" {sum(entry.size for entry in removed) / 2**20:.1f} MiB"
            )
        return
    with Database() as database:
        _ask(yes, f"Forget measurements in {database.path}?")
        count = database.clear(gpu=gpu, before=before)
        if not quiet:
            show(f"{count} measurements forgotten; {len(database)} left")


def _ask(yes: bool, question: str) -> None:
    """Go on where the user says so."""
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError(
                "clear asks before it forgets; there is nobody to ask, so give --yes."
            )
        click.confirm(question, abort=True)
