"""`onnxbolt cache`: the database of measurements."""
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
    """What tuning has measured: the database in the cache directory (ONNXBOLT_CACHE_DIR)."""


@cache.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def cache_list(as_json: bool, quiet: bool) -> None:
    """One line per problem and machine, with the best configuration."""
    from onnxbolt.tune import listing
    from onnxbolt.tune.database import Database

    with Database() as database:
        found = listing.entries(database)
    if not quiet:
        show(json.dumps([entry.summary() for entry in found], indent=2) if as_json else listing.table_of(found))


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
        show(json.dumps(listing.details_as_json(entry), indent=2) if as_json else listing.details_of(entry))


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
@click.option("--gpu", metavar="NAME", help="Only measurements made on this GPU, named as `cache list` names it.")
@click.option("--older-than", metavar="DAYS", type=Finite(min=0, max=_CENTURY), help="Only measurements of more than so many days ago.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def cache_clear(gpu: str | None, older_than: float | None, yes: bool, quiet: bool) -> None:
    """Forget measurements: all, or those that the options name."""
    from onnxbolt.tune.database import Database

    with Database() as database:
        if not yes:
            if not sys.stdin.isatty():
                raise click.UsageError("clear asks before it forgets; there is nobody to ask, so give --yes.")
            click.confirm(f"Forget measurements in {database.path}?", abort=True)
        before = None if older_than is None else datetime.now(UTC) - timedelta(days=older_than)
        count = database.clear(gpu=gpu, before=before)
        if not quiet:
            show(f"{count} measurements forgotten; {len(database)} left")
