"""The command line: each command is a few lines that call the package.

Exit codes: 0 success, 1 error, 2 wrong usage, 3 accuracy gate failed, 4 too slow or too little
fused, 5 miss under --frozen, 130 interrupted; of several models the worst one. An error is one line
on stderr; a group of commands without a command prints its help there.

Commands import the optimizer inside their functions: `--help`, `--version`, `cache list --compiled`
and wrong usage then answer at once, without loading onnx and numpy.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnxbolt.cli_base import (
    FILE,
    Finite,
    Group,
    emit,
    log_format,
    messages,
    show,
)
from onnxbolt.cli_bench import bench
from onnxbolt.cli_cache import cache
from onnxbolt.cli_ci import ci
from onnxbolt.cli_explain import explain
from onnxbolt.cli_options import calibrating, comparison, measuring, once, planning, sized
from onnxbolt.cli_repair import bisect, doctor, undo
from onnxbolt.cli_report import report_commands
from onnxbolt.cli_tune import INTERRUPTED, tune
from onnxbolt.errors import AccuracyError, OnnxboltError, RejectedError
from onnxbolt.options import Options
from onnxbolt.spelling import flags
from onnxbolt.version import __version__

if TYPE_CHECKING:
    from onnxbolt.report import Report

USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line on `arguments` (default: the process's) and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with _leaving_on_signals(), flags():
            code = commands.main(arguments, prog_name="onnxbolt", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        # a group without a command: its message is the group's help
        show(error.format_message(), err=True)
        return USAGE
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "onnxbolt"
        words = error.format_message().rstrip(".")
        words = words if words.endswith("?") else f"{words}."  # "Did you mean 'optimize'?"
        return _fail(f"{words} See {where} --help.", USAGE)
    except click.Abort:
        return _fail("interrupted", INTERRUPTED)
    except OnnxboltError as error:
        return _fail(str(error), error.exit_code)
    except OSError as error:
        return _fail(
            f"{error.filename}: {error.strerror}" if error.filename else str(error),
            OnnxboltError.exit_code,
        )
    return code if isinstance(code, int) else 0


@contextmanager
def _leaving_on_signals() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP (a CI's time limit, a closed terminal) into SystemExit, which
    unwinds the stack, so that no half-written file stays behind."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    # Python lets only the main thread set signal handlers
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    known = (getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP"))  # Windows lacks SIGHUP
    before = {number: signal.signal(number, leave) for number in known if number is not None}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _fail(message: str, code: int) -> int:
    if logging.getLogger("onnxbolt").isEnabledFor(logging.INFO):
        traceback.print_exc()
    show(f"error: {' '.join(message.split())}", err=True)
    return code


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def commands() -> None:
    """Fuse matrix products and convolutions of an ONNX model with the operators around them into
    single CUDA kernels for ONNX Runtime."""


@commands.command()
@click.argument("source", metavar="IN.onnx|DIRECTORY", type=FILE)
@click.argument("out", metavar="OUT.onnx|DIRECTORY", type=FILE)
@planning
@calibrating
@click.option(
    "--tune",
    is_flag=True,
    help=(
        "First measure kernels and ONNX Runtime on the local GPU. Ctrl-C stops measuring, and the"
        " best kernels so far are used."
    ),
)
@measuring("With --tune: ")
@sized
@click.option(
    "--no-library",
    is_flag=True,
    help="Write only the model and compile nothing; `onnxbolt build` makes the library later.",
)
@click.option("--no-verify", is_flag=True, help="Do not compare the result with the original.")
@click.option("--keep-failed", is_flag=True, help="Write the output even if verification fails.")
@click.option(
    "--require-fused",
    type=Finite(0, 100),
    metavar="PERCENT",
    help=(
        "Exit with 4 and write nothing if fused nodes do less than this share of the FLOPs"
        " of all matrix products and convolutions."
    ),
)
@click.option(
    "--min-speedup",
    type=Finite(min=0),
    help=(
        "With --tune: also measure the whole model as `bench` does; exit with 4 and write nothing"
        " if the speed-up is lower."
    ),
)
@click.option(
    "--report",
    "reports",
    metavar="FILE.json|FILE.md|FILE.html",
    type=FILE,
    multiple=True,
    callback=once,
    help="Also write the report to this file; may be given several times.",
)
@click.option(
    "--save-as-external-data",
    is_flag=True,
    help="Write weights to OUT.onnx.data. Models above 2 GB always do.",
)
@click.option("--dry-run", is_flag=True, help="Plan and report, but write and compile nothing.")
@comparison
def optimize(
    source: Path,
    out: Path,
    reports: tuple[Path, ...],
    dry_run: bool,
    quiet: bool,
    no_library: bool,
    no_verify: bool,
    **values: Any,
) -> int:
    """Fuse IN.onnx, and write OUT.onnx with its custom-op library.

    The library is OUT.onnxbolt.so, beside OUT.onnx. Of a directory, every model below it is
    optimized, each with its library, lock file and report at the same path below the other
    directory; they share one tuning. --report is then for the table of all models, --lock for a
    directory of lock files, and the exit code is the worst one.
    """

    if values["frozen"] and not values["lock"]:
        raise click.UsageError("--frozen needs --lock FILE, the lock file to read.")
    if values["tune"] and (dry_run or values["frozen"]):
        raise click.UsageError(
            "--tune measures, so it cannot be combined with --dry-run or --frozen."
        )
    if values["strict"] and no_verify:
        raise click.UsageError(
            "--strict concerns verification, so it cannot be combined with --no-verify."
        )
    if values["budget"] is not None and not values["tune"]:
        raise click.UsageError("--budget limits tuning: give it with --tune.")
    if values["strategy"] and not values["tune"]:
        raise click.UsageError("--strategy is a way of tuning: give it with --tune.")
    options = Options(
        library=not (no_library or dry_run), verify=not (no_verify or dry_run), **values
    )
    run = _optimize_all if source.is_dir() else _optimize
    return run(source, out, reports, options, dry_run, quiet)


def _optimize(
    source: Path, out: Path, reports: Sequence[Path], options: Options, dry_run: bool, quiet: bool
) -> int:
    """Optimize one model, and return the exit code."""
    from onnxbolt import pipeline
    from onnxbolt.report import files
    from onnxbolt.tune.progress import reporter

    _check_results(source, None if dry_run else out, reports, _path(options.lock), files.PAGES)
    try:
        report = pipeline.optimize(
            source,
            None if dry_run else out,
            options=options,
            progress=messages(quiet),
            watch=reporter(log_format(), quiet),
        )
    except RejectedError as error:
        _show(error.report, reports, quiet)
        raise
    _show(report, reports, quiet)
    return INTERRUPTED if report.tuning and report.tuning.ended_by == "interrupt" else 0


def _optimize_all(
    models: Path, out: Path, reports: Sequence[Path], options: Options, dry_run: bool, quiet: bool
) -> int:
    """Optimize each model of a directory, and return the worst exit code."""
    from onnxbolt import directory
    from onnxbolt.report import files
    from onnxbolt.tune.progress import reporter

    jobs = directory.jobs_in(models, out, _path(options.lock), _path(options.inputs))
    for report in reports:
        files.check_suffix(report)
        directory.check_apart("report", report, jobs, models if dry_run else out)
    found = directory.optimize_all(
        jobs,
        options,
        write=not dry_run,
        progress=messages(quiet),
        watch=reporter(log_format(), quiet),
    )
    for report in reports:
        files.save(found, report)
    if not quiet:
        emit("models", found.text, found.json)
    return found.code


def _path(given: str | Path | None) -> Path | None:
    return None if given is None else Path(given)


def _check_results(
    source: Path,
    out: Path | None,
    reports: Sequence[Path],
    lock: Path | None,
    suffixes: Sequence[str],
) -> None:
    """Refuses bad paths of results before the work, which may take long, rather than after it."""
    from onnxbolt.output import check_apart
    from onnxbolt.report.files import check_suffix

    for report in reports:
        check_suffix(report, suffixes)
        check_apart("report", report, source, out)
        check_apart("report", report, lock, None)
        if lock is not None and report.resolve() == lock.resolve():
            raise click.UsageError(f"--report and --lock name the same file, {report}.")


def _show(report: Report, paths: Sequence[Path], quiet: bool) -> None:
    for path in paths:
        report.save(path)
    if not quiet:
        emit("report", report.text, report.json)


@commands.command()
@click.argument("model", metavar="OUT.onnx", type=FILE)
def build(model: Path, quiet: bool) -> None:
    """Compile the custom-op library of an optimized model.

    The library is written beside the model: OUT.onnxbolt.so.
    """
    from onnxbolt import library
    from onnxbolt.library_file import sha256_of

    path = library.build_for(model, progress=messages(quiet))
    if not quiet:
        sha256 = sha256_of(path)
        emit(
            "library",
            lambda: f"{path}\nSHA-256 {sha256}",
            partial(json.dumps, {"path": str(path), "sha256": sha256}),
        )


@commands.command()
@click.argument("original", metavar="ORIGINAL.onnx", type=FILE)
@click.argument("optimized", metavar="OPTIMIZED.onnx", type=FILE)
@click.option(
    "--report",
    "reports",
    metavar="FILE.json|FILE.md",
    type=FILE,
    multiple=True,
    help="Also write every comparison to this file; may be given several times.",
)
@sized
@comparison
def verify(
    original: Path,
    optimized: Path,
    reports: tuple[Path, ...],
    strict: bool,
    quiet: bool,
    **values: Any,
) -> int:
    """Compare an optimized model with its original.

    Both run on the same inputs. Compared are every output, every segment of the optimized model,
    and each fused node against float64.
    """
    from onnxbolt.report import files
    from onnxbolt.report.verification import Verification
    from onnxbolt.verify import verify as compare

    _check_results(original, optimized, reports, None, files.TABLES)
    result = compare(original, optimized, **values)
    report = Verification(original, optimized, result)
    for path in reports:
        files.save(report, path)
    if not quiet:
        emit("verification", result.text, report.json)
    return 0 if result.passed and (result.judged or not strict) else AccuracyError.exit_code


@commands.command()
@click.argument("model", metavar="OUT.onnx", type=FILE)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def inspect(model: Path, as_json: bool, quiet: bool) -> None:
    """List the fused nodes of an optimized model.

    Each is shown with its configuration, FLOPs and source nodes.
    """
    from onnxbolt.graph.importer import load_model
    from onnxbolt.inspection import inspect_model

    inspection = inspect_model(load_model(model), model)
    if not quiet:
        emit("inspection", inspection.json if as_json else inspection.text, inspection.json)


commands.add_command(bench)
commands.add_command(bisect)
commands.add_command(cache)
commands.add_command(ci)
commands.add_command(doctor)
commands.add_command(explain)
commands.add_command(report_commands)
commands.add_command(tune)
commands.add_command(undo)
