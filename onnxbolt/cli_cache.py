"""`onnxbolt cache`: the database of measurements and the cache of compiled objects."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from onnxbolt.cli_base import FILE, Finite, Group, show

_CENTURY = 36500  # days; datetime cannot subtract many more


@click.group(cls=Group)
def cache() -> None:
    """Manage cached measurements and compiled objects.

    They are in the cache directory, ONNXBOLT_CACHE_DIR.
    """


@cache.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option(
    "--compiled",
    is_flag=True,
    help="List compiled objects instead, the least recently used first; ONNXBOLT_CACHE_SIZE"
    " limits their total size.",
)
def cache_list(as_json: bool, compiled: bool, quiet: bool) -> None:
    """List the tuned problems, with their best configurations."""
    if compiled:
        from onnxbolt.codegen import listing as compiled_listing

        if not quiet:
            show(compiled_listing.as_json() if as_json else compiled_listing.text())
        return
    from onnxbolt.tune import listing
    from onnxbolt.tune.database import Database

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
    """Show every measurement of one task.

    KEY-PREFIX is the beginning of the task's key in `cache list`.
    """
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
    """Write all measurements to FILE as JSON lines, sorted; compressed if it ends in .gz."""
    from onnxbolt.tune.database import Database

    with Database() as database:
        database.export(path)
        if not quiet:
            show(f"{len(database)} measurements in {path}")


@cache.command("merge")
@click.argument("path", metavar="FILE", type=FILE)
def cache_merge(path: Path, quiet: bool) -> None:
    """Add the measurements of an exported file or a database."""
    from onnxbolt.tune.database import Database

    with Database() as database:
        new = database.merge(path)
        if not quiet:
            show(f"{new} new measurements of {path}; {len(database)} in all")


@cache.command("train")
@click.argument("path", metavar="FILE", type=FILE)
@click.option(
    "--export",
    type=FILE,
    help="Train on an exported file or another database. Default: the cache's measurements.",
)
def cache_train(path: Path, export: Path | None, quiet: bool) -> None:
    """Train a cost model on measurements, and write it to FILE.

    `optimize` and `tune` predict with it where they get it by --cost-model. Kernel families keep
    their formula where it orders held-out problems better. Needs onnxbolt[learn].
    """
    import tempfile

    from onnxbolt.files import write_whole
    from onnxbolt.terminal import table
    from onnxbolt.tune.database import Database
    from onnxbolt.tune.training import HEADER, lines, train

    with (
        tempfile.TemporaryDirectory(prefix="onnxbolt-") as directory,
        Database(Path(directory, "export.sqlite") if export else None) as database,
    ):
        if export:
            database.merge(export)
        trained = train(database)
    write_whole(path, trained.text)
    if not quiet:
        show(table(HEADER, list(lines(trained)), None))


@cache.command("clear")
@click.option(
    "--gpu",
    metavar="NAME",
    help="Only measurements made on this GPU, named as in `cache list`.",
)
@click.option(
    "--older-than",
    metavar="DAYS",
    type=Finite(min=0, max=_CENTURY),
    help=("Only measurements older than this; with --compiled: only objects unused for this long."),
)
@click.option(
    "--compiled", is_flag=True, help="Delete compiled objects instead; measurements stay."
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def cache_clear(
    gpu: str | None, older_than: float | None, compiled: bool, yes: bool, quiet: bool
) -> None:
    """Delete measurements: all, or those that the options select."""
    from onnxbolt.codegen import cache as compiled_cache

    if compiled and gpu is not None:
        raise click.UsageError(
            "--gpu selects measurements, so it cannot be combined with --compiled."
        )
    before = None if older_than is None else datetime.now(UTC) - timedelta(days=older_than)
    if compiled:
        _ask(yes, f"Delete the compiled objects in {compiled_cache.objects().parent}?")
        removed = compiled_cache.clear(before.timestamp() if before else None)
        if not quiet:
            show(
                f"{len(removed)} compiled entries deleted,"
                f" {sum(entry.size for entry in removed) / 2**20:.1f} MiB"
            )
        return
    from onnxbolt.tune.database import Database

    with Database() as database:
        _ask(yes, f"Delete the measurements in {database.path}?")
        count = database.clear(gpu=gpu, before=before)
        if not quiet:
            show(f"{count} measurements deleted; {len(database)} left")


@cache.command("key")
@click.argument("paths", metavar="[LOCK|DIRECTORY]...", type=FILE, nargs=-1)
def cache_key(paths: tuple[Path, ...], quiet: bool) -> None:
    """Print a key under which a CI can keep the cache directory.

    The key changes whenever compiled objects of other runs are of no use. With lock files, or
    directories of files named *.lock, a second part changes with their contents; the key without it
    is the prefix of all keys whose objects are still of use.
    """
    from onnxbolt.tune.cache_key import cache_key as key

    found = key(paths)
    if not quiet:
        show(found)


def _ask(yes: bool, question: str) -> None:
    """Ask `question` unless `yes`; leave the program if the answer is no."""
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError(
                "`cache clear` asks for confirmation, and nobody is at the terminal: pass --yes."
            )
        click.confirm(question, abort=True)
