"""Makes a release's files and checks them as an index would: `make dist`.

    python -m tests.release          # dist/*.whl and dist/*.tar.gz; a tag of HEAD is checked, too
    python -m tests.release v0.1.0   # for this tag

A release is a commit whose tag is v and the version in onnxbolt/version.py, and whose changelog has
a dated section of that version and no entries above it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def version(root: Path = ROOT) -> str:
    """The version, from the one place that has it."""
    (found,) = re.findall(
        r'^__version__ = "([^"]+)"$', (root / "onnxbolt/version.py").read_text(), re.MULTILINE
    )
    return str(found)


def tags_here(root: Path = ROOT) -> list[str]:
    """Tags of versions that HEAD has; none outside of a git repository."""
    command = ["git", "tag", "--points-at", "HEAD", "v*"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.split()


def problems(root: Path, tags: Sequence[str]) -> Iterator[str]:
    """The reasons why HEAD, with these tags, is no release; without tags, why it cannot become
    one."""
    known = version(root)
    for tag in tags:
        if tag != f"v{known}":
            yield (
                f"tag {tag} is not v{known}, the version in onnxbolt/version.py: change the version"
                " and tag that commit"
            )
    text = (root / "CHANGELOG.md").read_text()
    sections = re.findall(
        r"^## (\S+)(?: - ([^\n]+))?\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
    )
    released = [(name, date) for name, date, _ in sections if name != "Unreleased"]
    if not released or released[0][0] != known:
        yield f"CHANGELOG.md has no section {known} above those of other versions: add it"
    elif tags and not re.fullmatch(r"\d{4}-\d\d-\d\d", released[0][1]):
        yield f"CHANGELOG.md's section {known} has no date: write ## {known} - YYYY-MM-DD"
    if tags and any(name == "Unreleased" and body.strip() for name, _, body in sections):
        yield f"CHANGELOG.md has unreleased entries: move them to section {known}"


def build(root: Path, out: Path) -> None:
    """Wheel and sdist in `out`, checked."""
    run = [sys.executable, "-m"]
    subprocess.run([*run, "hatchling", "build", "--directory", out], cwd=root, check=True)
    files = sorted(out.glob(f"onnxbolt-{version(root)}*"))
    subprocess.run([*run, "twine", "check", "--strict", *files], check=True)
    wheels = [file for file in files if file.suffix == ".whl"]
    subprocess.run([*run, "check_wheel_contents", *wheels], check=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tag", nargs="?", help="default: the tags of HEAD")
    chosen = parser.parse_args(arguments)
    found = [*problems(ROOT, [chosen.tag] if chosen.tag else tags_here())]
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    if found:
        return 1
    build(ROOT, ROOT / "dist")
    return 0


if __name__ == "__main__":
    sys.exit(main())
