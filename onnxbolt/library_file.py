"""A model's library as a file: reads the file's manifest without loading the library, and loads the
library if it is the right one.

Loading a library runs its code. So its manifest, JSON in the ELF section `.onnxbolt`
(templates/manifest.cc.j2), is read from the file first, by the tables that the file's header points
to (System V ABI, "Object Files"). A library that does not match is never loaded. Deployment needs
only Python's standard library for that.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import re
import struct
import threading
from dataclasses import dataclass
from pathlib import Path

from onnxbolt.errors import InputError, LibraryError

_SECTION = b".onnxbolt"
_HEADER, _SECTION_HEADER, _SEGMENT_HEADER = 64, 64, 56  # bytes, of a 64-bit file
_SYMBOL = 24  # bytes of a symbol
_MACHINE = 18  # the place of the processor's number in a file
_MACHINES = {62: "x86_64", 183: "aarch64"}  # by ELF's numbers, as `platform.machine` names them
_NO_BITS = 8  # type of a section that has no bytes in the file
_LONGEST = 2**22  # bytes of a manifest; an op type takes some hundred
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class LibraryManifest:
    """The contents of a library, as its manifest describes them."""

    format: int
    digest: str  # ties the library to its models
    archs: tuple[int, ...]
    ops: tuple[str, ...]


class Library:
    """A library file; none of its code runs before `probe`. Raises LibraryError, which ends in
    `remedy`, if the file is not a usable library.

    With `sha256`, in the form of `given_sum`, the file's bytes must have that sum. `loadable` then
    names a sealed copy of exactly these bytes, so that replacing the file between the check and the
    loading has no effect. A system without such copies loads nothing then.
    """

    def __init__(self, path: Path, remedy: str, sha256: str | None = None) -> None:
        self.path, self.remedy = path, remedy
        # a bare name would be looked for among the system's libraries
        self.loadable = str(path.resolve())
        try:
            content = path.read_bytes() if path.is_file() else b""
            if sha256 is not None:
                self._check_sum(content, sha256)
            self.manifest = read_manifest(content)
            self._machine = int(struct.unpack_from("<H", content, _MACHINE)[0])
            if sha256 is not None:
                self.loadable = _private_copy(content) if hasattr(os, "memfd_create") else ""
        except (OSError, ValueError) as error:
            raise LibraryError(
                f"{path} is damaged or not an onnxbolt library: {error}. {remedy}"
            ) from error

    @property
    def digest(self) -> str:
        """The digest that a model must have for this library to serve it."""
        return self.manifest.digest

    def probe(self, device: int = 0) -> tuple[int, str]:
        """Load the library and return (architecture, reason): the architecture, 80 say, whose
        kernels GPU `device` would run, or 0 with the reason why none would. One is that this system
        does not load the file, since it was built for another processor, say, or a newer glibc."""
        if not self.loadable:
            return 0, (
                f"this {platform.system()} has no sealed copies in memory (memfd_create), without"
                " which a library that library_sha256 names is not loaded"
            )
        try:
            library = ctypes.CDLL(self.loadable)
        except OSError as error:
            machine = _MACHINES.get(self._machine, f"ELF machine {self._machine}")
            return 0, (
                f"{self.path} is built for Linux on {machine}, and does not load on this"
                f" {platform.system()} on {platform.machine()} ({error}). {self.remedy}"
            )
        try:
            probe = library.onnxbolt_probe
        except AttributeError as error:
            raise LibraryError(f"{self.path} is damaged: {error}. {self.remedy}") from error
        probe.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]
        reason = ctypes.create_string_buffer(1000)
        arch = int(probe(device, reason, len(reason)))
        return arch, reason.value.decode(errors="replace")

    def _check_sum(self, content: bytes, expected: str) -> None:
        found = hashlib.sha256(content).hexdigest()
        if found != expected:
            raise LibraryError(
                f"{self.path} has SHA-256 {found}, but {expected} is required. Deploy the"
                " library with that sum, or pass the new sum if you trust this file"
            )


@dataclass(frozen=True)
class Beside:
    """The file where a model's library belongs, examined without loading it; `problem` says why it
    cannot be used."""

    name: str
    sha256: str = ""
    archs: tuple[int, ...] = ()
    problem: str = ""

    def __str__(self) -> str:
        if not self.sha256:
            return self.problem
        return (
            f"{self.name} {self.problem}"
            if self.problem
            else (
                f"{self.name}, kernels for {', '.join(f'sm_{arch}' for arch in self.archs)},"
                f" SHA-256 {self.sha256}"
            )
        )


def beside(path: Path, digest: str) -> Beside:
    """Examine the library at `path` of a model with `digest`."""
    if not path.is_file():
        return Beside(path.name, problem="no library beside the model. Run: onnxbolt build")
    try:
        content = path.read_bytes()
        manifest = read_manifest(content)
    except (OSError, ValueError) as error:
        return Beside(
            path.name, sha256_of(path), problem=f"is damaged or not an onnxbolt library: {error}"
        )
    sums = hashlib.sha256(content).hexdigest()
    if manifest.digest != digest:
        return Beside(path.name, sums, manifest.archs, "belongs to another model")
    return Beside(path.name, sums, manifest.archs)


def given_sum(value: object) -> str:
    """The argument library_sha256 in lower case. Raises InputError unless it is 64 hexadecimal
    digits."""
    if not isinstance(value, str) or not _SHA256.fullmatch(value.lower()):
        raise InputError(
            f"library_sha256={ascii(value)[:80]} is not a SHA-256 sum (64 hexadecimal"
            " digits); `onnxbolt inspect` prints the library's"
        )
    return value.lower()


def sha256_of(path: Path) -> str:
    """The sum of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_manifest(file: bytes) -> LibraryManifest:
    """The manifest in the bytes of a library. Raises ValueError for other bytes: each number of the
    file is checked before it is used."""
    text = section(file, _SECTION)
    try:
        values = json.loads(text.rstrip(b"\0"))
        manifest = LibraryManifest(
            values["format"], values["digest"], tuple(values["archs"]), tuple(values["ops"])
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError("its manifest is not JSON") from error
    sound = (
        type(manifest.format) is int
        and isinstance(manifest.digest, str)
        and _SHA256.fullmatch(manifest.digest)
    )
    if (
        not sound
        or not all(type(arch) is int for arch in manifest.archs)
        or not all(isinstance(op, str) for op in manifest.ops)
    ):
        raise ValueError("its manifest is not one of onnxbolt")
    return manifest


def exported(file: bytes) -> frozenset[str]:
    """The symbols that the bytes of a library define for others. Raises ValueError as
    `read_manifest` does."""
    symbols, names = section(file, b".dynsym"), section(file, b".dynstr")
    found = set()
    for start in range(0, len(symbols) - _SYMBOL + 1, _SYMBOL):
        name, _, _, place = struct.unpack_from("<IBBH", symbols, start)
        if place:  # else another library defines it
            found.add(names[name : names.find(b"\0", name)].decode(errors="replace"))
    return frozenset(found)


def section(file: bytes, wanted: bytes) -> bytes:
    """The bytes of a section of a library. Raises ValueError as `read_manifest` does."""
    if len(file) < _HEADER or file[:6] != b"\x7fELF\x02\x01":
        raise ValueError("it is not a 64-bit ELF file")
    segments, sections = struct.unpack_from("<QQ", file, 32)
    segment_size, segment_count, section_size, section_count, names = struct.unpack_from(
        "<5H", file, 54
    )
    if (
        section_size != _SECTION_HEADER
        or (segment_count and segment_size != _SEGMENT_HEADER)
        or names >= section_count
    ):
        raise ValueError("its header is damaged")
    _within(file, segments, segment_size * segment_count)
    _within(file, sections, section_size * section_count)
    for i in range(segment_count):  # loading a file that is cut off ends the process
        offset, _, _, size = struct.unpack_from("<4Q", file, segments + i * _SEGMENT_HEADER + 8)
        _within(file, offset, size)
    headers = [
        struct.unpack_from("<IIQQQQ", file, sections + i * _SECTION_HEADER)
        for i in range(section_count)
    ]
    start, size = headers[names][4:]
    _within(file, start, size)
    for name, kind, _, _, offset, length in headers:
        begin = start + name
        if (
            kind != _NO_BITS
            and name + len(wanted) < size
            and file[begin : begin + len(wanted) + 1] == wanted + b"\0"
        ):
            if length > _LONGEST:
                raise ValueError(f"its section {wanted.decode()} is too long")
            _within(file, offset, length)
            return file[offset : offset + length]
    what = "manifest" if wanted == _SECTION else f"section {wanted.decode()}"
    raise ValueError(f"it has no {what}")


def _within(file: bytes, offset: int, size: int) -> None:
    if offset + size > len(file):
        raise ValueError("it is truncated")


_copies: dict[bytes, str] = {}  # by digest of the content
_copying = threading.Lock()


def _private_copy(content: bytes) -> str:
    """The path of a copy in memory, sealed against changes; equal contents share a copy.

    Its descriptor stays open as long as the process lives, as a loaded library does: the linker
    knows libraries by their paths.
    """
    import fcntl  # Windows, for which there are no libraries, has no such module

    key = hashlib.sha256(content).digest()
    with _copying:
        if key not in _copies:
            descriptor = os.memfd_create("onnxbolt", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            with open(descriptor, "wb", closefd=False) as file:
                file.write(content)
            fcntl.fcntl(
                descriptor,
                fcntl.F_ADD_SEALS,
                fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL,
            )
            _copies[key] = f"/proc/self/fd/{descriptor}"
        return _copies[key]
