"""Registers extensions, which add to onnxbolt without touching the package (docs/extending.md).

An extension is Python and C++ code of the user's own environment. It is registered by `register`,
or found by the entry-point group `onnxbolt.extensions` when a model is first optimized, built,
verified or inspected. A model can only name it.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from onnxbolt import names
from onnxbolt.archs import ARCHS, Arch
from onnxbolt.codegen.resources import EXTENSIONS, Sources
from onnxbolt.epilogues import EPILOGUES, EpilogueStep
from onnxbolt.errors import InputError
from onnxbolt.families import FAMILIES, Family
from onnxbolt.measurements.strategy import STRATEGIES, Strategy
from onnxbolt.ops import OPS, FusedOp
from onnxbolt.registry import Registry

# parts of an extension, and what each holds
_HELD: dict[str, type[Any]] = {
    "archs": Arch,
    "epilogues": EpilogueStep,
    "ops": FusedOp,
    "families": Family,
    "strategies": Strategy,
    "include_dirs": Path,
    "sources": Path,
}


@dataclass(frozen=True, kw_only=True)
class Extension:
    """The parts that one extension adds; all but the name may be empty. Raises InputError for a
    part that holds anything else.

    name          letters, digits and underscores; models and lock files hold it
    archs         architectures: facts and capabilities (onnxbolt/archs/)
    epilogues     steps behind a product or convolution
    ops           fused ops, whose C++ parts are among the sources
    families      kernel families, their numbers from 1000 on
    strategies    of the tuner, which say what is measured; `--strategy` names one
    include_dirs  folders of C++ headers, for the units of its kernels; a family's kernel is
                  families/<family>/kernel.h below one of them
    sources       C++ files (.cc) of the libraries that have its ops or kernels
    """

    name: str
    archs: tuple[Arch, ...] = ()
    epilogues: tuple[EpilogueStep, ...] = ()
    ops: tuple[FusedOp, ...] = ()
    families: tuple[Family[Any], ...] = ()
    strategies: tuple[Strategy, ...] = ()
    include_dirs: tuple[Path, ...] = ()
    sources: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        for part, kind in _HELD.items():
            held = getattr(self, part)
            if not isinstance(held, tuple) or not all(isinstance(each, kind) for each in held):
                raise InputError(
                    f"extension {self.name}: {part} is {held!r}; give a tuple of objects of the"
                    f" type {kind.__name__}"
                )


_registered: dict[str, Extension] = {}
_registering = threading.RLock()  # an entry point may register its extension itself


def register(extension: Extension) -> None:
    """Add all parts of an extension, or none.

    Registering the same extension again does nothing. Raises InputError, which names both sides,
    where one of its names or numbers is taken, and where a file of it is missing.
    """
    with _registering, ExitStack() as undo:
        known = _registered.get(extension.name)
        if known == extension:
            return
        if known:
            raise InputError(
                f"two extensions have the name {extension.name}, with {_summary(known)} and with"
                f" {_summary(extension)}: leave out one of them, or give it another name"
            )
        try:
            for registry, entry in _parts(extension):
                registry.add(entry, extension.name)
                undo.callback(registry.remove, entry)
            _check_kinds()
        except (AttributeError, ValueError) as error:  # a part lacks what its class asks for
            raise InputError(f"extension {extension.name}: {error}") from error
        undo.pop_all()
        _registered[extension.name] = extension


def _check_kinds() -> None:
    """Raises ValueError where a family would be chosen for an op that it does not compute: planning
    finds families by a problem's class alone, and nodes are of the op's kinds."""
    for op, family in itertools.product(OPS.values(), FAMILIES.values()):
        problem = op.problem_type
        if problem is None or not op.kinds or not issubclass(problem, family.problems):
            continue  # an op without kinds has the nodes of another one
        if family.kinds.isdisjoint(op.kinds):
            raise ValueError(
                f"kernel family {family.name} solves a {problem.__name__}, the problem of the"
                f" fused op {op.name}, but computes none of its kinds ({', '.join(op.kinds)}): give"
                " the op a class of problems of its own"
            )


def unregister(extension: Extension) -> None:
    """Take an extension away again, for tests. Raises InputError where it is not registered."""
    with _registering:
        if _registered.get(extension.name) != extension:
            raise InputError(f"extension {extension.name} is not registered")
        del _registered[extension.name]
        for registry, entry in reversed(list(_parts(extension))):
            registry.remove(entry)


@functools.cache
def load() -> None:
    """Register what installed packages name in the entry-point group, once in a process. Raises
    InputError, which names the package, for an entry point that is broken."""
    for point in sorted(entry_points(group=names.EXTENSIONS), key=lambda point: point.name):
        try:
            extension = point.load()
            if not isinstance(extension, Extension):
                raise TypeError(f"it is a {type(extension).__name__} and no Extension")
            register(extension)
        except (Exception, SystemExit) as error:  # code of others, which can raise anything
            what = " ".join(f"{type(error).__name__}: {error}".split())
            raise InputError(
                f"{_described(point)} cannot be used: {what}. Mend or uninstall that package"
            ) from error


def _parts(extension: Extension) -> Iterator[tuple[Registry[Any, Any], Any]]:
    """Each part with the table that it belongs to."""
    # absolute, since compilers run in other directories
    folders, files = (
        tuple(path.absolute() for path in paths)
        for paths in (extension.include_dirs, extension.sources)
    )
    yield EXTENSIONS, Sources(extension.name, folders, files)
    tables: tuple[tuple[Registry[Any, Any], tuple[Any, ...]], ...] = (
        (ARCHS, extension.archs),
        (EPILOGUES, extension.epilogues),
        (OPS, extension.ops),
        (FAMILIES, extension.families),
        (STRATEGIES, extension.strategies),
    )
    for registry, entries in tables:
        for entry in entries:
            yield registry, entry


def _summary(extension: Extension) -> str:
    """The parts that an extension adds, in words."""
    return ", ".join([entry.name for _, entry in _parts(extension)][1:]) or "nothing"


def _described(point: EntryPoint) -> str:
    package = point.dist.name if point.dist else "an unknown package"
    return f"the extension {point.name} of {package} ({point.value})"
