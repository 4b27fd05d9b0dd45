"""Compiled objects, in a content-addressed cache that ninja fills on all cores.

An entry is the directory <cache>/objects/<key> with the source, the compiler's log and, unless it
failed, the object. The key covers all that decides the object: the source text, the headers that it
includes, the exact command and the compiler's version. Entries are made in a directory of their own
and renamed into place. Failures are entries, too, so that a source that does not compile takes its
time only once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from onnxbolt.codegen import cache
from onnxbolt.codegen.limits import described, limited
from onnxbolt.codegen.nvcc import Toolchain
from onnxbolt.codegen.resources import headers_below, resource_dir
from onnxbolt.errors import BuildError

Progress = Callable[[str], None]  # receives a line for each finished step

_SOURCE, _OBJECT, _LOG, _LIBRARY = "unit.{}", "unit.o", "unit.log", "library.so"
# headers that a source includes; those of the package are named from custom_ops/
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)
_PATIENCE = 100  # compilers have this many times 0.05 s to end
# failures that say nothing about the source, so that they are not remembered
_PASSING = re.compile(
    r"No space left|Cannot allocate memory|[Kk]illed|died due to signal|out of memory|Permission"
    r" denied"
)
_OVER_LIMIT = re.compile(
    r"Cannot allocate memory|out of memory|bad_alloc|CPU time limit|CPU limit|signal 24|File size"
    r" limit"
)


@dataclass(frozen=True)
class Unit:
    """A translation unit: its file name (.cu or .cc), its text, the architecture that it is
    for (0: host code), and folders of extensions' headers."""

    name: str
    text: str
    arch: int = 0
    include_dirs: tuple[Path, ...] = ()

    @property
    def source(self) -> str:
        return _SOURCE.format(self.name.rpartition(".")[2])

    def command(self, toolchain: Toolchain, source: str, output: str) -> list[str]:
        """The compiler's command line."""
        toolchain = dataclasses.replace(toolchain, include_dirs=self.include_dirs)
        return toolchain.compile_command(source, output, self.arch)


def compile_units(
    units: Sequence[Unit], toolchain: Toolchain, progress: Progress | None = None
) -> list[Path]:
    """The object of each unit, from the cache or compiled now. Raises BuildError with command,
    log and source of one that fails."""
    done = dict(compile_each(units, toolchain, progress, keep_going=False))
    for unit in units:
        if isinstance(outcome := done.get(unit), BuildError):
            raise outcome
    objects = [outcome for unit in units if isinstance(outcome := done.get(unit), Path)]
    if len(objects) < len(units):
        raise BuildError(
            f"the build stopped before {next(u for u in units if u not in done).name} was"
            " compiled. Run the command again"
        )
    return objects


def compile_each(
    units: Sequence[Unit],
    toolchain: Toolchain,
    progress: Progress | None = None,
    keep_going: bool = True,
    stop: threading.Event | None = None,
) -> Iterator[tuple[Unit, Path | BuildError]]:
    """Each unit with its object or its error, as soon as it is known; cached ones come first.

    Once `stop` is set, units that are not compiled yet never come. Raises BuildError, after all
    others, for a failure that says nothing about the source (a full disk, say).
    """
    store = cache.objects()
    store.mkdir(parents=True, exist_ok=True)
    entries: dict[Path, list[Unit]] = {}
    for unit in dict.fromkeys(units):
        entries.setdefault(store / unit_key(unit, toolchain), []).append(unit)
    with _only_builder(cache.lock(), progress):
        missing = {entry: of_entry[-1] for entry, of_entry in entries.items() if not entry.exists()}
        known = [cache.used(entry) for entry in entries if entry not in missing]
        cache.trim()
        for entry in itertools.chain(
            known, _compile(missing, toolchain, progress, keep_going, stop) if missing else ()
        ):
            for unit in entries[entry]:
                yield unit, _outcome(unit, entry, toolchain)


def known(unit: Unit, toolchain: Toolchain) -> Path | BuildError | None:
    """The object or the error of a unit in the cache; None if it was not compiled."""
    entry = cache.objects() / unit_key(unit, toolchain)
    return _outcome(unit, cache.used(entry), toolchain) if entry.exists() else None


def compile_alone(unit: Unit, toolchain: Toolchain) -> tuple[bytes | None, str]:
    """The object of a unit, or None if it does not compile, and the compiler's log. The cache is
    neither read nor written."""
    with tempfile.TemporaryDirectory(prefix="onnxbolt-") as scratch:
        Path(scratch, unit.source).write_text(unit.text, encoding="utf-8")
        result = subprocess.run(
            limited(unit.command(toolchain, unit.source, _OBJECT)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=scratch,
            env={**os.environ, "TMPDIR": "."},
        )
        made = None if result.returncode else Path(scratch, _OBJECT).read_bytes()
        return made, result.stdout.decode(errors="replace")


def keep(unit: Unit, toolchain: Toolchain, made: bytes | None, log: str) -> Path | BuildError:
    """Add what `compile_alone` returned elsewhere to the cache, and return the object or the error
    of the unit. Raises BuildError for a failure that says nothing about the source."""
    if made is None and not _is_verdict(log):
        raise _failure(unit, log, toolchain)
    store = cache.objects()
    store.mkdir(parents=True, exist_ok=True)
    entry = store / unit_key(unit, toolchain)
    with tempfile.TemporaryDirectory(dir=store.parent, prefix="build-") as scratch:
        directory = Path(scratch, entry.name)
        directory.mkdir()
        (directory / unit.source).write_text(unit.text, encoding="utf-8")
        (directory / _LOG).write_text(log, encoding="utf-8")
        if made is not None:
            (directory / _OBJECT).write_bytes(made)
        with contextlib.suppress(OSError):  # another process has made the entry meanwhile
            os.rename(directory, entry)
    return _outcome(unit, entry, toolchain)


def object_path(key: str) -> Path:
    """The path of the object of the unit with this key, whether it exists or not."""
    return cache.objects() / key / _OBJECT


def link(objects: Sequence[Path], output: Path, toolchain: Toolchain) -> None:
    """Link a shared library at `output`, which appears whole or not at all. Raises BuildError."""
    # nvcc hands its arguments to a shell. It gets links with fixed names in a directory of its own,
    # and never sees the user's paths.
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as scratch:
        names = [f"{i}.o" for i in range(len(objects))]
        for name, path in zip(names, objects, strict=True):
            Path(scratch, name).symlink_to(path.resolve())
        command = toolchain.link_command(names, _LIBRARY)
        result = subprocess.run(
            limited(command),
            capture_output=True,
            text=True,
            cwd=scratch,
            env={**os.environ, "TMPDIR": "."},
        )
        if result.returncode:
            log = result.stdout + result.stderr
            raise BuildError(
                f"{output} cannot be linked: {_summary(log)}", shlex.join(command), log
            )
        os.replace(Path(scratch, _LIBRARY), output)


def text_digest(files: Iterable[tuple[str, str]]) -> str:
    """SHA-256, in hex, over names and texts in the order given."""
    digest = hashlib.sha256()
    for name, text in files:
        for part in (name, text):
            digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()


def unit_key(unit: Unit, toolchain: Toolchain) -> str:
    """Equal for units that have the same object.

    It covers all files in the folders of extensions, read anew, since macros may name the one that
    is included, and a running process may see them change. It has the contents of the package's
    headers and CUTLASS's version, not their places, so that installations share objects.
    """
    own, cutlass = f"-I{resource_dir('custom_ops')}", f"-isystem={toolchain.cutlass}/"
    command = shlex.join(
        part
        for part in unit.command(toolchain, unit.source, _OBJECT)
        if part != own and not part.startswith(cutlass)
    )
    added = [
        (name, path.read_text(encoding="utf-8"))
        for name, path in sorted(headers_below(unit.include_dirs))
    ]
    texts = (unit.text, *(text for _, text in added))
    included = frozenset(name for text in texts for name in _INCLUDE.findall(text))
    return text_digest(
        [
            ("source", unit.text),
            ("command", command),
            ("compiler", toolchain.version),
            ("headers", _headers(included, toolchain.cutlass)),
            *added,
        ]
    )


@functools.cache
def _headers(included: frozenset[str], cutlass: Path) -> str:
    """The digest of all headers of the package that are included, directly or by other headers. A
    change to another header leaves an object valid."""
    found: dict[str, str] = {}
    root = resource_dir("custom_ops")
    pending = [(name, [root]) for name in sorted(included)]
    while pending:
        name, folders = pending.pop()
        path = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if path is None or not path.is_relative_to(root):
            continue
        if (name := path.relative_to(root).as_posix()) in found:
            continue
        found[name] = path.read_text(encoding="utf-8")
        # a compiler looks beside the including file first
        pending += [(other, [path.parent, root]) for other in _INCLUDE.findall(found[name])]
    # CUTLASS's thousands of headers change with its version alone
    version = (cutlass / "include" / "cutlass" / "version.h").read_text(encoding="utf-8")
    return text_digest([*sorted(found.items()), ("cutlass/version.h", version)])


@contextlib.contextmanager
def _only_builder(lock: FileLock, progress: Progress | None) -> Iterator[None]:
    """Only one process builds at a time, on all cores; the next one finds its objects in the
    cache."""
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


def _compile(
    missing: dict[Path, Unit],
    toolchain: Toolchain,
    progress: Progress | None,
    keep_going: bool,
    stop: threading.Event | None,
) -> Iterator[Path]:
    """Fill the entries by one run of ninja, and yield each as soon as it is done. A source that
    does not compile gets an entry without object."""
    store, failure = next(iter(missing)).parent, None
    with tempfile.TemporaryDirectory(dir=store.parent, prefix="build-") as scratch:
        made = {Path(scratch) / entry.name: entry for entry in missing}
        for directory, entry in made.items():
            directory.mkdir()
            (directory / missing[entry].source).write_text(missing[entry].text, encoding="utf-8")
        ninja = "\n".join(_ninja_file(missing, toolchain))
        Path(scratch, "build.ninja").write_text(ninja, encoding="utf-8")
        for name in _run_ninja(Path(scratch), len(missing), progress, keep_going, stop):
            directory = Path(scratch, name)
            log = _read_log(directory)
            if (directory / _OBJECT).exists() or _is_verdict(log):
                os.rename(directory, made[directory])
                yield made[directory]
            elif failure is None:
                failure = _failure(missing[made[directory]], log, toolchain)
    if failure and not (stop and stop.is_set()):
        raise failure


def _ninja_file(missing: dict[Path, Unit], toolchain: Toolchain) -> list[str]:
    lines = [
        "rule compile",
        f"  command = cd $key && $line > {_LOG} 2>&1 && mv unit.tmp {_OBJECT}",
        "  description = $unit $key",
    ]
    for entry, unit in missing.items():
        line = shlex.join(unit.command(toolchain, unit.source, "unit.tmp")).replace("$", "$$")
        lines += [
            f"build {entry.name}/{_OBJECT}: compile {entry.name}/{unit.source}",
            f"  key = {entry.name}",
            f"  line = {line}",
            f"  unit = {unit.name}",
        ]
    return [*lines, ""]


def _run_ninja(
    directory: Path,
    total: int,
    progress: Progress | None,
    keep_going: bool,
    stop: threading.Event | None,
) -> Iterator[str]:
    """Yields the key of each unit when it is done, compiled or failed, and reports a line of
    progress."""
    # 0: go on, however many fail
    cores, failures = (str(len(os.sched_getaffinity(0))), ("0" if keep_going else "1"))
    # -P: Python must not look for ninja in the current directory, where anything may lie beside a
    # model
    command = limited(
        [sys.executable, "-P", "-m", "ninja", "-C", str(directory), "-j", cores, "-k", failures]
    )
    if progress:
        progress(f"compiling {total} translation units")
    # a session of its own, so that ninja's launcher, ninja and all compilers can be ended together
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # relative to a unit's directory: files of an interrupted nvcc are removed with `directory`
        env={**os.environ, "TMPDIR": ".."},
    ) as process:
        if stop:
            threading.Thread(target=_terminate_on, args=(stop, process), daemon=True).start()
        try:
            for line in process.stdout or ():
                if line.startswith("["):
                    description, _, key = line.strip().rpartition(" ")
                    if progress:
                        progress(f"compiled {description}")
                    yield key
        except BaseException:  # compilers must not outlive an interrupt
            _terminate(process)
            raise


def _terminate_on(stop: threading.Event, process: subprocess.Popen[str]) -> None:
    while process.poll() is None:
        if stop.wait(0.1):
            _terminate(process)
            return


def _terminate(process: subprocess.Popen[str]) -> None:
    """End ninja and its compilers, and wait for them, since one that still writes would leave
    files."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)  # ninja ends its compilers, then itself
        for _ in range(_PATIENCE):
            process.poll()  # a process that has ended stays in its group until it is polled
            os.killpg(process.pid, 0)
            time.sleep(0.05)


def _is_verdict(log: str) -> bool:
    """True if a failure's log is about the source, so that another attempt would fail as well."""
    return re.search(r"\berror\b", log) is not None and _PASSING.search(log) is None


def _outcome(unit: Unit, entry: Path, toolchain: Toolchain) -> Path | BuildError:
    compiled = entry / _OBJECT
    return compiled if compiled.exists() else _failure(unit, _read_log(entry), toolchain, entry)


def _read_log(directory: Path) -> str:
    log = directory / _LOG
    return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""


def _failure(unit: Unit, log: str, toolchain: Toolchain, entry: Path | None = None) -> BuildError:
    """The error of a unit; `entry` is its directory in the cache, if it is remembered."""
    source = str(entry / unit.source) if entry else unit.source
    where = f"; source and log are in {entry}" if entry else ""
    command = shlex.join(unit.command(toolchain, source, _OBJECT))
    return BuildError(f"{unit.name} does not compile: {_summary(log)}{where}", command, log, source)


def _summary(log: str) -> str:
    """The log's first line that names an error, else its last, with the limits if one of them may
    be the cause."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b|undefined reference", line)]
    first = (errors or lines[-1:] or ["the compiler gave no message"])[0][:300]
    return f"{first} ({described()})" if _OVER_LIMIT.search(log) else first
