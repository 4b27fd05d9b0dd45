"""A digest of sources that comments, white space, file names and the order of files leave as it is.

Models, lock files and measurements name the kernels they were made with by this digest. Moving a
file or formatting it makes no other kernel, so it leaves them valid.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path

from onnxbolt.codegen.resources import resource_dir

EQUAL = Path(__file__).with_name("equal_kernels.json")

# strings and characters stay as they are; what may be dropped has names
_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/|\{\#.*?\#\})
      | (?P<include>^[ \t]*\#[ \t]*include[ \t]+"[^"\n]*"[ \t]*$
                  | ^[ \t]*\#[ \t]*pragma[ \t]+once[ \t]*$)
      | (?P<directive>^[ \t]*\#(?:[^\n"'/\\] | \\\n | \\. | /(?![/*])
                                | "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*')*)
      | R"(?P<tag>[^()\s\\]{0,16})\(.*?\)(?P=tag)"
      | "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*'
      | (?P<space>\s+)
      | \w+ | [^\w\s"'/\#{]+ | .""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)

_DEFINED = re.compile(r"#\s*define\s+\w+\(?")


def normalized(text: str) -> str:
    """C++, or a template of it, one space between words, each preprocessor directive on a line of
    its own.

    Comments and includes of files of our own are left out: what they name is in the digest by
    itself.
    """
    parts: list[str] = []
    for found in _TOKEN.finditer(text):
        if found["directive"] is not None:
            parts.append(_directive(found["directive"]))
        elif found["comment"] is None and found["include"] is None and found["space"] is None:
            word = found[0]
            apart = bool(parts) and _joins(parts[-1][-1], word[0])
            parts.append(f" {word}" if apart else word)
    return "".join(parts)


def _directive(text: str) -> str:
    """A preprocessor directive on one line.

    A macro with parameters differs from one whose value begins with a bracket.
    """
    line = text.replace("\\\n", " ").strip()
    head = _DEFINED.match(line)
    start = head.end() if head else 1
    begin = " ".join(line[:start].split())
    gap = " " if head and not begin.endswith("(") else ""
    return f"\n{begin}{gap}{normalized(line[start:])}\n"


def sources_digest(texts: Iterable[str]) -> str:
    """SHA-256, in hex, over the normalized texts, in whatever order they come; empty ones do not
    count."""
    digests = sorted(
        hashlib.sha256(kept.encode()).digest() for kept in map(normalized, texts) if kept
    )
    return hashlib.sha256(b"".join(digests)).hexdigest()


def kernel_sources() -> list[str]:
    """The text of every file of custom_ops/ and templates/."""
    roots = (resource_dir("custom_ops"), resource_dir("templates"))
    return [
        path.read_text() for root in roots for path in sorted(root.rglob("*")) if path.is_file()
    ]


@functools.cache
def kernel_sources_digest() -> str:
    """Over `kernel_sources`: what a kernel's time depends on besides its configuration, CUTLASS
    and the compiler."""
    return sources_digest(kernel_sources())


@functools.cache
def equal_digests() -> frozenset[str]:
    """Digests of earlier sources whose kernels have the same machine code, so that what was
    measured with them holds for today's.

    equal_kernels.json is written by `python -m tests.same_results rekey`, which compares the
    machine code. It names the sources that it was written for, and says nothing about others.
    """
    table = json.loads(EQUAL.read_text())
    return frozenset(table["equal"]) if table["kernels"] == kernel_sources_digest() else frozenset()


def _joins(before: str, after: str) -> bool:
    """True if a token that ends and one that begins so would be another one without a space."""
    words = (before.isalnum() or before == "_") and (after.isalnum() or after == "_")
    return words or before == after in ("+", "-")
