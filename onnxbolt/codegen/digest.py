"""A digest of sources that does not depend on comments, white space, file names and the order of
files.

Models, lock files and measurements identify their kernels by this digest. Moving or formatting a
file changes no kernel, so models, lock files and measurements stay valid. equal_kernels.json has
the digests of earlier sources: measurements of a family's kernels stay valid where other families
have changed alone.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from onnxbolt.codegen.resources import EXTENSIONS, resource_dir

EQUAL = Path(__file__).with_name("equal_kernels.json")

# comments, spliced lines, separators of digits, and literals; each alternative begins with a
# character of its own, by which the search finds it quickly
_TOKEN = re.compile(
    r"""/(?:/(?:[^\\\n]|\\.)*|\*.*?\*/) | \{\#.*?\#\} | \\\n
      | '(?<=\w')(?<!\b[uUL]')(?<!\bu8')
      | "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*'
      | R(?:(?<!\wR)|(?<=\b[uUL]R)|(?<=\bu8R))"(?P<tag>[^()\s\\]{0,16})\(.*?\)(?P=tag)\"""",
    re.VERBOSE | re.DOTALL,
)
_DIRECTIVE = re.compile(r"^[ \t]*(#[^\n]*)", re.MULTILINE)
_OWN = re.compile(r"""#[ \t]*(?:include[ \t]*"[^"]*"|pragma[ \t]+once)[ \t]*""")
_INCLUDED = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
_DEFINED = re.compile(r"#[ \t]*define[ \t]+(?P<name>[\w$]+)(?P<bracket>\(?)")
# a space without which a compiler would read other tokens: between words, operators, a string and
# its prefix
_NEEDED = re.compile(
    r"""[ ](?=[\w$\\+&|<=>\#"'-])(?:
        (?<=[\w$\\][ ])(?=[\w$\\]) | (?<=([-+&|<=\#])[ ])(?=\1) | (?<=operator[<>-][ ])(?=[<>])
      | (?=["'])(?:(?<=\b[uULR][ ])|(?<=\b[uUL]R[ ])|(?<=\bu8[ ])|(?<=\bu8R[ ])))""",
    re.VERBOSE,
)
# substitutes for white space that stays, while all other white space is dropped
_HELD = {char: chr(0xF0000 + ord(char)) for char in map(chr, range(0x3001)) if char.isspace()}
_HOLD = str.maketrans(_HELD)
_END = _HELD["\n"]
# texts that stay as they are: with a token across lines, a space behind a backslash, a digraph for
# #, a header whose name looks like a comment, or characters of _HELD
_UNUSUAL = re.compile(
    r"""\\(?:\n(?<=\S\\\n)(?=\S)|[ \t]+\n) | %: | \#[ \t]*include[ \t]*<[^>\n]*(?:\s|//|/\*)
      | [\U000f0000-\U000fffff]""",
    re.VERBOSE,
)


def normalized(text: str) -> str:
    """C++, or a template of it, without comments and without the white space that separates no
    tokens, each preprocessor directive on a line of its own.

    Includes of own files are left out, since the digest covers those files, too. Texts are equal as
    well if they differ only by the names in such includes, by spaces between values of a template,
    or by white space in what a macro turns into a string.
    """
    if _UNUSUAL.search(text):
        return f"kept as it is\n{text}"
    lines = _DIRECTIVE.sub(_directive, _TOKEN.sub(_token, text))
    kept = _NEEDED.sub(_HELD[" "], " ".join(lines.split())).replace(" ", "")
    for char, held in _HELD.items():
        kept = kept.replace(held, char)
    return kept


def _token(found: re.Match[str]) -> str:
    """Replaces a comment by a space; holds the white space of a literal, and sets its suffix
    apart."""
    token, behind = found[0], found.string[found.end() : found.end() + 1]
    if token[0] in "/{\\":
        return " "
    held = token.translate(_HOLD)
    return f"{held}\\" if len(token) > 1 and behind.isidentifier() else held


def _directive(found: re.Match[str]) -> str:
    """The text for a preprocessor directive: a line of its own; empty for an include of an own
    file.

    A macro with parameters stays different from one whose value begins with a bracket.
    """
    line = found[1].strip()
    if _OWN.fullmatch(line):
        return ""
    head = _DEFINED.match(line)
    begin = f"#define {head['name']}{head['bracket'] or ' '}" if head else "#"
    rest = line[head.end() if head else 1 :].strip()
    return f"{_END}{begin.translate(_HOLD)}{rest}{_END}"


def sources_digest(texts: Iterable[str]) -> str:
    """SHA-256, in hex, of the normalized texts in any order, without empty ones."""
    return hashlib.sha256(b"".join(sorted(map(_digest, texts)))).hexdigest()


@functools.cache
def _digest(text: str) -> bytes:
    """The digest of a normalized text; empty for an empty one."""
    kept = normalized(text)
    return hashlib.sha256(kept.encode()).digest() if kept else b""


def kernel_sources() -> list[str]:
    """The text of every file of custom_ops/ and templates/."""
    roots = (resource_dir("custom_ops"), resource_dir("templates"))
    return [
        path.read_text(encoding="utf-8")
        for root in roots
        for path in sorted(root.rglob("*"))
        if path.is_file()
    ]


def kernel_sources_digest(extensions: Iterable[str] = ()) -> str:
    """The digest of `kernel_sources` and of these extensions' files. A kernel's time depends on it,
    on the kernel's configuration, CUTLASS and the compiler. The files of extensions are read anew,
    since a running process may see them change."""
    texts = [text for name in sorted(extensions) for text in EXTENSIONS[name].texts]
    return _kernel_sources_digest(tuple(texts))


def present_sources_digest() -> str:
    """The digest of `kernel_sources` and of the files of all installed extensions, which
    measurements name."""
    return kernel_sources_digest(EXTENSIONS)


@functools.cache
def family_sources_digest(name: str) -> str:
    """The digest of what a unit with kernels of one of the package's families includes, itself
    among it; empty for an extension's family."""
    root, begin = resource_dir("custom_ops"), f"families/{name}/kernel.h"
    if not (root / begin).is_file():
        return ""
    found: dict[str, str] = {}
    left = [begin]
    while left:
        path = left.pop()
        if path not in found and (root / path).is_file():  # CUTLASS's headers are elsewhere
            found[path] = (root / path).read_text(encoding="utf-8")
            left += _INCLUDED.findall(found[path])
    unit = (resource_dir("templates") / part for part in ("unit.cu.j2", "arch.h.j2"))
    return sources_digest([*found.values(), *(path.read_text(encoding="utf-8") for path in unit)])


@functools.cache
def _kernel_sources_digest(added: tuple[str, ...]) -> str:
    return sources_digest([*kernel_sources(), *added])


def holds(digest: str, family: str | None = None) -> bool:
    """True if measurements that name the sources `digest` hold for today's kernels of a family;
    without one, for those of all families that there were."""
    if digest in (present_sources_digest(), kernel_sources_digest()):
        return True
    then = _earlier().get(digest, {})
    if family is not None:
        return same_kernels(family, then.get(family, ""))
    return bool(then) and all(same_kernels(name, sources) for name, sources in then.items())


def same_kernels(family: str, sources: str) -> bool:
    """True if `sources`, a digest of `family_sources_digest`, are today's of the family, or have
    the same machine code."""
    today = family_sources_digest(family)
    if not today or sources == today:
        return bool(today)
    return any({sources, today} <= group for group in _of_equal_code().get(family, ()))


def valid_digests() -> frozenset[str]:
    """Digests of the sources with which measurements may hold for today's kernels; `holds` tells
    of which families.

    Those that were made before an extension was installed are of the package's own kernels, which
    an extension does not change.
    """
    return frozenset({present_sources_digest(), kernel_sources_digest(), *_earlier()})


def families_digests() -> dict[str, str]:
    """`family_sources_digest` of each of the package's families."""
    found = resource_dir("custom_ops").glob("families/*/kernel.h")
    return {
        name: family_sources_digest(name) for name in sorted(path.parent.name for path in found)
    }


def _earlier() -> Mapping[str, Mapping[str, str]]:
    """The `families_digests` of earlier sources, by the digest of all these sources."""
    return dict(_table()["sources"])


def _of_equal_code() -> Mapping[str, list[set[str]]]:
    """By family, sets of digests of sources that have the same machine code."""
    return {name: list(map(set, groups)) for name, groups in _table()["equal"].items()}


@functools.cache
def _table() -> Mapping[str, Any]:
    """The facts in equal_kernels.json, written by `python -m tests.same_results note` and
    `rekey`."""
    return dict(json.loads(EQUAL.read_text(encoding="utf-8")))
