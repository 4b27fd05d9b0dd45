"""GPU architectures as facts: limits, capabilities, tensor-core shapes and peak rates; one file per
SM, no logic.

Rates are the data sheet's dense ones for one reference GPU of the architecture. The cost model
(plan/cost.py) says which part of them a kernel reaches. Sources: CUDA C++ Programming Guide,
"Compute Capabilities" (limits), the PTX ISA (MMA shapes), and the data sheet or architecture
whitepaper of the GPU named in `gpu` (rates).

An architecture is one `Arch`, here or in an extension. The rest of the package, the options, the
command line and the generated sources ask it for facts and capabilities, and know no numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

from onnxbolt.archs import sm75, sm80, sm86, sm89, sm90
from onnxbolt.archs.arch import Arch, Capability, Shape
from onnxbolt.errors import InputError
from onnxbolt.registry import Registry

__all__ = [
    "ARCHS",
    "OWN",
    "Arch",
    "Capability",
    "Shape",
    "by_name",
    "get",
    "names",
    "nearest",
    "nearness",
]

OWN = (sm75.ARCH, sm80.ARCH, sm86.ARCH, sm89.ARCH, sm90.ARCH)  # the package's, not an extension's


class _Archs(Registry[int, Arch]):
    """Architectures by number; an extension's facts are checked."""

    def add(self, entry: Arch, owner: str) -> None:
        entry.check()
        super().add(entry, owner)


ARCHS: Registry[int, Arch] = _Archs("architecture", OWN, "number", "name")


def get(number: int) -> Arch:
    """The architecture with `number`, as configurations hold it. Raises InputError if there is
    none."""
    try:
        return ARCHS[number]
    except KeyError:
        raise InputError(
            f"onnxbolt has no kernels for architecture {number}; {_choose()}"
        ) from None


def by_name(name: str) -> Arch:
    """The architecture that options call `name`, like "sm_90a". Raises InputError if there is
    none."""
    found = next((arch for arch in ARCHS.values() if arch.name == name), None)
    if found is None:
        raise InputError(f"onnxbolt has no kernels for architecture {name}; {_choose()}")
    return found


def nearest(archs: Iterable[Arch]) -> Arch | None:
    """The architecture whose kernels a GPU prefers if it runs all of these; None if there are
    none."""
    return max(archs, key=nearness, default=None)


def nearness(arch: Arch) -> tuple[int, bool, int]:
    """A sort key: larger for the architecture that a GPU prefers, the closer one, and the package's
    own of equals."""
    return arch.compute_capability, arch in OWN, arch.number


def names() -> tuple[str, ...]:
    """The names of all architectures, the package's own first."""
    return tuple(arch.name for arch in ARCHS.values())


def _choose() -> str:
    return f"choose one of {', '.join(names())}"
