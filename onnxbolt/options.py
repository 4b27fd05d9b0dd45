"""What a user can choose, in one frozen place; the only module that reads environment variables."""
from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from onnxbolt.errors import InputError

PRECISIONS = ("fp16", "bf16", "keep")
FUSE = ("winning", "all")
ARCHS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a")
TRIALS = 24  # Bolt, section 3.2.2: tens of candidates are enough where the templates know the hardware

LONGEST = 2**31 - 1  # dimension: kernels count in 32 bits
Shapes = Mapping[str, tuple[int, ...]]  # by the name of a graph input


@dataclass(frozen=True)
class Options:
    """Options of `optimize`; the command line's flags have the same names."""

    precision: str = "fp16"
    fuse: str = "winning"
    archs: tuple[str, ...] = ()  # empty: the local GPU's, else sm_80 and sm_90a
    library: bool = True
    verify: bool = True
    inputs: Path | None = None  # .npz for verification
    atol: float | None = None
    rtol: float | None = None
    keep_failed: bool = False
    save_as_external_data: bool = False
    seed: int = 0
    tune: bool = False  # measure on the local GPU before choosing
    budget: float | None = None  # seconds for that, compiling included
    trials: int = TRIALS  # candidates of each problem
    min_shapes: Shapes | None = None  # of graph inputs with symbolic dimensions: what the plan is for, and kernels are measured with
    opt_shapes: Shapes | None = None  # what decides what is fused
    max_shapes: Shapes | None = None
    lock: Path | None = None  # where the plan's decisions are kept
    frozen: bool = False  # they are read there, and nothing else decides

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise InputError(f"--precision {self.precision}: choose one of {', '.join(PRECISIONS)}")
        if self.fuse not in FUSE:
            raise InputError(f"--fuse {self.fuse}: choose one of {', '.join(FUSE)}")
        for arch in self.archs:
            if arch not in ARCHS:
                raise InputError(f"--arch {arch}: choose one of {', '.join(ARCHS)}")
        if len(set(self.archs)) != len(self.archs):
            raise InputError(f"--arch {' '.join(self.archs)}: each architecture once")
        if self.frozen and self.lock is None:
            raise InputError("--frozen needs --lock FILE: the lock file is what it reads")
        if self.frozen and self.tune:
            raise InputError("--frozen takes every choice from the lock file, --tune measures: choose one of them")
        if self.budget is not None and not self.budget > 0:
            raise InputError(f"--budget {self.budget:g}: give a time such as 90s or 10m")
        for flag, shapes in (("--min-shapes", self.min_shapes), ("--opt-shapes", self.opt_shapes), ("--max-shapes", self.max_shapes)):
            if not all(1 <= size <= LONGEST for shape in (shapes or {}).values() for size in shape):
                raise InputError(f"{flag}: sizes are from 1 to {LONGEST}")
        if self.trials < 1:
            raise InputError(f"--trials {self.trials}: at least one candidate of each problem")
        check_comparison(self.atol, self.rtol, self.seed)


def check_comparison(atol: float | None, rtol: float | None, seed: int) -> None:
    """Raises InputError for what no comparison can be made with."""
    for flag, bound in (("--atol", atol), ("--rtol", rtol)):
        if bound is not None and not 0 <= bound < math.inf:
            raise InputError(f"{flag} {bound:g}: give a number that is finite and not negative")
    if seed < 0:
        raise InputError(f"--seed {seed}: give a number that is not negative")


def arch_number(arch: str) -> int:
    """'sm_90a' -> 90, the number that configurations carry."""
    return int(arch.removeprefix("sm_").removesuffix("a"))


def seconds(text: str) -> float:
    """'10m', '90s', '1h30m' or '45' as seconds. Raises InputError for anything else, and for no time at all."""
    parts = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?", text.strip())
    total = sum(float(number or 0) * unit for number, unit in zip(parts.groups(), (3600, 60, 1), strict=True)) if parts else 0.0
    if not total:
        raise InputError(f"{text!r} is no time; write it as 90s, 10m or 1h30m")
    return total


def shapes(text: str) -> dict[str, tuple[int, ...]]:
    """'x:[1,3,224,224],y:[1,10]' by name, as trtexec and Polygraphy write shapes.

    Raises InputError for anything else, and for sizes that no dimension has.
    """
    found: dict[str, tuple[int, ...]] = {}
    for part in re.split(r"(?<=\]),", text.strip()):
        match = re.fullmatch(r"\s*([^\s\[\]]+):\[\s*(\d{1,10}(?:\s*,\s*\d{1,10})*)?\s*\]", part)
        sizes = tuple(int(size) for size in (match[2] or "").split(",") if size) if match else (0,)
        if match is None or not all(1 <= size <= LONGEST for size in sizes):
            raise InputError(f"{text!r} is no list of shapes; write it as x:[1,3,224,224],y:[1,10], with sizes from 1 to {LONGEST}")
        if match[1] in found:
            raise InputError(f"{text!r} has two shapes of {match[1]}: give one")
        found[match[1]] = sizes
    return found


def cache_directory() -> Path:
    """ONNXBOLT_CACHE_DIR, else the platform's cache directory."""
    chosen = os.environ.get("ONNXBOLT_CACHE_DIR")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("onnxbolt"))


def cuda_home() -> Path | None:
    """CUDA_HOME, where the user chose a toolkit."""
    chosen = os.environ.get("CUDA_HOME")
    return Path(chosen) if chosen else None
