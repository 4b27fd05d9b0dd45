"""Applies each mutant to a copy of the sources and runs the tests that should find it: `python -m
tests.mutants [NAME..]`.

Without a mutant these tests have to pass; with it one has to fail. The table is
tests/mutants/results.md, of which named mutants renew their rows.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.edits import replaced
from tests.mutants.listing import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results.md")
COPY = ROOT / "build" / "mutants"
NOTHING = "**nothing**"
PATIENCE = 900  # seconds; tests of a mutant that does not end have found it
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """`found_by`: the first test that failed, "" where none did."""

    mutant: Mutant
    found_by: str
    seconds: float


def copy_sources(to: Path) -> None:
    """The tracked files, as they are in the working tree."""
    shutil.rmtree(to, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def mutated(text: str, mutant: Mutant) -> str:
    """The file's text with the mutant. Raises ValueError where its old text does not stand there
    once."""
    try:
        return replaced(text, mutant.old, mutant.new)
    except ValueError as error:
        raise ValueError(f"{mutant.name}, {mutant.file}: {error}") from error


def run_tests(tests: Sequence[str]) -> str:
    """Runs tests in the copy: the first that fails, "" where all pass. Raises RuntimeError where
    pytest itself cannot run."""
    environment = {**os.environ, "PYTHONPATH": str(COPY), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.setdefault("ONNXBOLT_CACHE_DIR", str(ROOT / "build" / "test-cache"))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "--tb=no",
        "-p",
        "no:cacheprovider",
        *tests,
    ]
    try:
        done = subprocess.run(
            command, cwd=COPY, env=environment, capture_output=True, text=True, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return f"no end within {PATIENCE} s"
    if done.returncode == 0:
        return ""
    failed = _FAILED.search(done.stdout)
    if failed is None:
        raise RuntimeError(
            f"pytest {' '.join(tests)} ends with"
            f" {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return failed[1]


def try_mutant(mutant: Mutant) -> Outcome:
    """Applies one to the copy, runs its tests, and takes it back."""
    started, file = time.monotonic(), COPY / mutant.file
    original = file.read_text()
    file.write_text(mutated(original, mutant))
    try:
        return Outcome(mutant, run_tests(mutant.tests), time.monotonic() - started)
    finally:
        file.write_text(original)


def table(found: Mapping[str, str]) -> str:
    """Markdown: by each mutant's name the test that found it, "" where none did. Mutants that
    `found` lacks were not tried."""
    tried = [mutant for mutant in MUTANTS if mutant.name in found]
    count = sum(bool(found[mutant.name]) for mutant in tried)
    summary = (
        f"Written by `make mutants`: {count} of {len(tried)} mutants are found by the tests that"
        " are named for them."
    )
    lines = ["# Mutants", "", summary, "", "| mutant | file | found by |", "|---|---|---|"]
    lines += [
        f"| {mutant.name} | {mutant.file} |"
        f" {f'`{by}`' if (by := found[mutant.name]) else NOTHING} |"
        for mutant in tried
    ]
    return "\n".join([*lines, ""])


def read_table(text: str) -> dict[str, str]:
    """The inverse of `table`."""
    rows = [
        line.strip("| ").split(" | ")
        for line in text.splitlines()
        if line.startswith("| ") and not line.startswith("| mutant |")
    ]
    return {name: "" if by == NOTHING else by.strip("`") for name, _, by in rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "names",
        nargs="*",
        help="mutants whose name or file contains one of these texts; by default all",
    )
    parser.add_argument(
        "--trusting", action="store_true", help="do not run the tests without a mutant first"
    )
    arguments = parser.parse_args()
    chosen = [
        mutant
        for mutant in MUTANTS
        if not arguments.names or any(text in mutant.name + mutant.file for text in arguments.names)
    ]
    copy_sources(COPY)
    if not arguments.trusting and (
        broken := run_tests(list(dict.fromkeys(test for mutant in chosen for test in mutant.tests)))
    ):
        print(f"error: {broken} fails without a mutant", file=sys.stderr)
        return 2
    outcomes = []
    for mutant in chosen:
        outcomes.append(try_mutant(mutant))
        print(
            f"{mutant.name}: {outcomes[-1].found_by or 'NOT FOUND'} ({outcomes[-1].seconds:.0f} s)",
            flush=True,
        )
    missed = [outcome.mutant.name for outcome in outcomes if not outcome.found_by]
    before = read_table(RESULTS.read_text()) if arguments.names and RESULTS.exists() else {}
    RESULTS.write_text(
        table(before | {outcome.mutant.name: outcome.found_by for outcome in outcomes})
    )
    print(
        f"{len(outcomes) - len(missed)} of {len(outcomes)} found",
        *(f"not found: {name}" for name in missed),
        sep="\n",
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
