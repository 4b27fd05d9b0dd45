"""Compiled objects: a content-addressed cache, filled by ninja on all cores.

An entry is the directory <cache>/objects/<key> with the source, the compiler's log and, unless it failed, the object. The
key covers all that decides the object: source text, headers, exact command, compiler version. Entries are made elsewhere and
renamed into place. Failures are entries too, so that a source that does not compile costs its time once.
"""
from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from onnxbolt.codegen.nvcc import Toolchain
from onnxbolt.codegen.resources import resource_dir
from onnxbolt.errors import BuildError
from onnxbolt.options import cache_directory

Progress = Callable[[str], None]  # receives one line for each thing done

_SOURCE, _OBJECT, _LOG = "unit.{}", "unit.o", "unit.log"
# an end that says nothing about the source: it is not remembered
_PASSING = re.compile(r"No space left|Cannot allocate memory|[Kk]illed|died due to signal|out of memory|Permission denied")


@dataclass(frozen=True)
class Unit:
    """A translation unit: its file name (.cu or .cc), its text, and the architecture that it is for (0: host code)."""

    name: str
    text: str
    arch: int = 0

    @property
    def source(self) -> str:
        return _SOURCE.format(self.name.rpartition(".")[2])


def compile_units(units: Sequence[Unit], toolchain: Toolchain, progress: Progress | None = None) -> list[Path]:
    """The object of each unit, from the cache or compiled now. Raises BuildError with command, log and source of one that fails."""
    store = cache_directory() / "objects"
    store.mkdir(parents=True, exist_ok=True)
    entries = {unit: store / _key(unit, toolchain) for unit in units}
    with _only_builder(FileLock(store.with_name("compile.lock")), progress):
        missing = {entry: unit for unit, entry in entries.items() if not entry.exists()}
        if missing:
            _compile(missing, toolchain, progress)
    for unit, entry in entries.items():
        _require_object(unit, entry, toolchain)
    return [entries[unit] / _OBJECT for unit in units]


def link(objects: Sequence[Path], output: Path, toolchain: Toolchain) -> None:
    """Link a shared library at `output`, which appears whole or not at all. Raises BuildError."""
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as scratch:
        linked = Path(scratch) / output.name
        command = toolchain.link_command([str(path) for path in objects], str(linked))
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            log = result.stdout + result.stderr
            raise BuildError(f"{output} does not link: {_summary(log)}", shlex.join(command), log)
        os.replace(linked, output)


def text_digest(files: Iterable[tuple[str, str]]) -> str:
    """SHA-256, in hex, over names and texts in the order given."""
    digest = hashlib.sha256()
    for name, text in files:
        for part in (name, text):
            digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()


def read_tree(root: Path, pattern: str = "*") -> list[tuple[str, str]]:
    """Relative path and text of every file below `root` whose name fits, sorted."""
    paths = sorted(path for path in root.rglob(pattern) if path.is_file())
    return [(path.relative_to(root).as_posix(), path.read_text()) for path in paths]


def _key(unit: Unit, toolchain: Toolchain) -> str:
    command = shlex.join(toolchain.compile_command(unit.source, _OBJECT, unit.arch))
    headers = _headers(toolchain.cutlass)
    return text_digest([("source", unit.text), ("command", command), ("compiler", toolchain.version), ("headers", headers)])


@functools.cache
def _headers(cutlass: Path) -> str:
    # CUTLASS's thousands of headers change with its version alone
    version = (cutlass / "include" / "cutlass" / "version.h").read_text()
    return text_digest([*read_tree(resource_dir("custom_ops"), "*.h"), ("cutlass/version.h", version)])


@contextlib.contextmanager
def _only_builder(lock: FileLock, progress: Progress | None) -> Iterator[None]:
    """One builder takes all cores; the next one finds its work done."""
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if progress:
            progress("waiting for another build to finish")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _compile(missing: dict[Path, Unit], toolchain: Toolchain, progress: Progress | None) -> None:
    """Fill the entries by one run of ninja; what fails for a reason of its own is an entry without object."""
    store = next(iter(missing)).parent
    with tempfile.TemporaryDirectory(dir=store.parent, prefix="build-") as scratch:
        made = {Path(scratch) / entry.name: entry for entry in missing}
        for directory, entry in made.items():
            directory.mkdir()
            (directory / missing[entry].source).write_text(missing[entry].text)
        Path(scratch, "build.ninja").write_text("\n".join(_ninja_file(missing, toolchain)))
        _run_ninja(Path(scratch), len(missing), progress)
        logs = {entry: _read_log(directory) for directory, entry in made.items()}
        for directory, entry in made.items():
            if (directory / _OBJECT).exists() or _is_verdict(logs[entry]):
                os.rename(directory, entry)
    for entry, log in logs.items():
        if log and not entry.exists():
            raise _failure(missing[entry], log, toolchain)


def _ninja_file(missing: dict[Path, Unit], toolchain: Toolchain) -> list[str]:
    lines = ["rule compile", f"  command = cd $entry && $line > {_LOG} 2>&1 && mv unit.tmp {_OBJECT}", "  description = $unit"]
    for entry, unit in missing.items():
        line = shlex.join(toolchain.compile_command(unit.source, "unit.tmp", unit.arch)).replace("$", "$$")
        lines += [f"build {entry.name}/{_OBJECT}: compile {entry.name}/{unit.source}",
                  f"  entry = {entry.name}", f"  line = {line}", f"  unit = {unit.name}"]
    return [*lines, ""]


def _run_ninja(directory: Path, total: int, progress: Progress | None) -> None:
    """One line of progress for each unit done. A unit that fails stops the run; its log says why."""
    command = [sys.executable, "-m", "ninja", "-C", str(directory), "-j", str(len(os.sched_getaffinity(0)))]
    if progress:
        progress(f"compiling {total} translation units")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            for line in process.stdout or ():
                if progress and line.startswith("["):
                    progress(f"compiled {line.strip()}")
        except BaseException:  # an interrupt, say: compilers do not go on alone
            process.terminate()
            raise


def _is_verdict(log: str) -> bool:
    """Whether a failure's log is about the source, so that the next attempt would fail as well."""
    return re.search(r"\berror\b", log) is not None and _PASSING.search(log) is None


def _require_object(unit: Unit, entry: Path, toolchain: Toolchain) -> None:
    if (entry / _OBJECT).exists():
        return
    if not entry.exists():
        raise BuildError(f"{unit.name} was not compiled: ninja stopped before it. Run the command again")
    raise _failure(unit, _read_log(entry), toolchain, entry)


def _read_log(directory: Path) -> str:
    log = directory / _LOG
    return log.read_text(errors="replace") if log.exists() else ""


def _failure(unit: Unit, log: str, toolchain: Toolchain, entry: Path | None = None) -> BuildError:
    """The error of a unit; `entry` is where it is remembered, if it is."""
    source = str(entry / unit.source) if entry else unit.source
    where = f"; source and log are in {entry}" if entry else ""
    command = shlex.join(toolchain.compile_command(source, _OBJECT, unit.arch))
    return BuildError(f"{unit.name} does not compile: {_summary(log)}{where}", command, log, source)


def _summary(log: str) -> str:
    """The log's first line that names an error, else its last."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b|undefined reference", line)]
    return (errors or lines[-1:] or ["the compiler gave no message"])[0][:300]
