"""All options of a user, in one frozen dataclass; this is the only module that reads environment
variables."""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, TypeVar

import platformdirs

from onnxbolt import archs
from onnxbolt.errors import InputError
from onnxbolt.files import private_directory
from onnxbolt.spelling import option

PRECISIONS = ("fp16", "bf16", "keep")
CODES = ("int8", "fp8")
AUTO = "auto"
QUANTIZED = (*CODES, AUTO)  # precisions that calibration makes
METHODS = ("minmax", "entropy", "percentile")  # ways to find scales
FUSE = ("winning", "all")
# Bolt, section 3.2.2: tens of candidates are enough where the templates know the hardware
TRIALS = 24

LONGEST = 2**31 - 1  # dimension: kernels count in 32 bits
Shapes = Mapping[str, tuple[int, ...]]  # by the name of a graph input


class Choices(TypedDict, total=False):
    """The fields of `Options` as keyword arguments of a function; tests/test_options.py compares
    the two."""

    precision: str
    calibration: str | Path | None
    calibration_method: str
    max_error: float | None
    metric: str
    fuse: str
    skip_nodes: Sequence[str]
    skip_rules: Sequence[str]
    only_rules: Sequence[str]
    archs: Sequence[str]
    library: bool
    verify: bool
    inputs: str | Path | None
    atol: float | None
    rtol: float | None
    strict: bool
    custom_ops: Sequence[str | Path]
    keep_failed: bool
    require_fused: float | None
    min_speedup: float | None
    save_as_external_data: bool
    seed: int
    tune: bool
    budget: float | None
    target: float | None
    trials: int
    strategy: str
    gpus: int | str
    scheduler: str
    insecure: bool
    min_shapes: Shapes | None
    opt_shapes: Shapes | None
    max_shapes: Shapes | None
    lock: str | Path | None
    frozen: bool
    cost_model: str | Path | None
    ort_version: str
    freeze_initializers: bool | None


@dataclass(frozen=True)
class Options:
    """Options of `optimize` and `tune`, which take them as keyword arguments; the command line's
    flags have the same names.

    precision   "fp16", "bf16" or "keep": type of weights and compute; keep: as in the model, fp32
                on TF32 tensor cores. "int8" or "fp8": products and what is stored between them in 8
                bits, the rest in fp16; "auto": for each product what gains most time for the least
                error, within `max_error`
    calibration with precision "int8", "fp8" or "auto": .npz with one array per graph input, or a
                directory of them, from which scales are found; not needed where `lock` has them
    calibration_method
                "minmax": codes reach the largest magnitude; "entropy", "percentile": as
                onnxruntime.quantization chooses; for int8 alone
    max_error   with precision "int8" or "fp8": fail if an output differs by more than this from the
                model of floats on the calibration data, as relative L2 error; "auto" keeps it
    metric      with precision "auto": "module:function" that scores a batch from the outputs and
                the arrays of the calibration data, labels among them; the error is then by how much
                the mean score falls
    fuse        "winning": only fusions that beat ONNX Runtime's own kernels (as measured,
                else as predicted); "all": every fusion
    skip_nodes  names of fused nodes, source nodes or tensors, one or several: no fused node
                replaces these nodes, or those that compute these tensors
    skip_rules  rules of fused nodes as reports name them ("conv+Bias+Relu"), or their first words
                ("conv"): the nodes of these fusions stay
    only_rules  the nodes of all other fusions stay
    archs       one architecture ("sm_90a") or several, for which fusions are chosen together;
                default: the local GPU's, else sm_80 and sm_90a
    library     False: write only the model and compile nothing
    verify      False: do not compare the result with the original
    inputs      .npz with one array per graph input, for verification; default: random inputs
    atol, rtol  verification also requires |y - y0| <= atol + rtol |y0| of every element
    strict      fail if the model or a part of it cannot be judged by any inputs
    custom_ops  libraries of other custom operators that the model needs, one or several; every
                session registers them
    keep_failed
                write the output even if verification fails
    require_fused
                fail if fused nodes do less than this percentage of the FLOPs of all matrix products
                and convolutions
    min_speedup with tune: fail if the optimized model is not this many times as fast as ONNX
                Runtime at its best, both measured as `onnxbolt bench` does
    save_as_external_data
                write weights to OUT.onnx.data; models above 2 GB always do
    seed        seed of the random inputs
    tune        measure kernels and ONNX Runtime on the local GPU first
    budget      with tune: time limit in seconds, compilation included
    target      with tune: stop as soon as the whole model takes no more than so many seconds
    trials      with tune: kernels tried per problem
    strategy    with tune: an extension's strategy, by name, that chooses what is measured; default:
                the tuner's own
    gpus        with tune: how many GPUs of this machine measure, or "all"; more than one need
                `onnxbolt[cluster]`
    scheduler   with tune: the address of a dask scheduler, such as "tls://host:8786", whose
                workers measure
    insecure    take a scheduler without TLS that is on another machine
    min_shapes, opt_shapes, max_shapes
                sizes by the name of a graph input, for symbolic dimensions: the least and the
                largest that kernels are chosen for, and the one that decides what is fused
    freeze_initializers
                True: turn initializers that are also graph inputs into constants, and remove those
                inputs; default: only if all initializers are inputs
    lock        lock file: measured times in it are used, and this run's choices are written to it
    frozen      take every choice from the lock file; fail if it lacks one
    cost_model  file of `onnxbolt cache train`: a learned model that predicts times in the place of
                the formulas
    ort_version
                version of ONNX Runtime that will run the model, such as "1.31": its CUDA kernels
                decide what stays in fp32; default: the installed one, else the newest known

    Raises InputError for a value that cannot be used.
    """

    precision: str = "fp16"
    calibration: str | Path | None = None
    calibration_method: str = "minmax"
    max_error: float | None = None
    metric: str = ""
    fuse: str = "winning"
    skip_nodes: Sequence[str] = ()
    skip_rules: Sequence[str] = ()
    only_rules: Sequence[str] = ()
    archs: Sequence[str] = ()
    library: bool = True
    verify: bool = True
    inputs: str | Path | None = None
    atol: float | None = None
    rtol: float | None = None
    strict: bool = False
    custom_ops: Sequence[str | Path] = ()
    keep_failed: bool = False
    require_fused: float | None = None
    min_speedup: float | None = None
    save_as_external_data: bool = False
    seed: int = 0
    tune: bool = False
    budget: float | None = None
    target: float | None = None
    trials: int = TRIALS
    strategy: str = ""
    gpus: int | str = 1
    scheduler: str = ""
    insecure: bool = False
    min_shapes: Shapes | None = None
    opt_shapes: Shapes | None = None
    max_shapes: Shapes | None = None
    lock: str | Path | None = None
    frozen: bool = False
    cost_model: str | Path | None = None
    ort_version: str = ""
    freeze_initializers: bool | None = None

    def __post_init__(self) -> None:
        for name in ("archs", "custom_ops", "skip_nodes", "skip_rules", "only_rules"):
            given = getattr(self, name)
            alone = isinstance(given, str | Path)
            object.__setattr__(self, name, (given,) if alone else tuple(given))
        for name, allowed in (
            ("precision", (*PRECISIONS, *QUANTIZED)),
            ("calibration_method", METHODS),
            ("fuse", FUSE),
        ):
            if (given := getattr(self, name)) not in allowed:
                raise InputError(f"{option(name, given)}: choose one of {', '.join(allowed)}")
        for arch in self.archs:
            if arch not in archs.names():
                known = ", ".join(archs.names())
                raise InputError(f"{option('archs', arch)}: choose one of {known}")
        if len(set(self.archs)) != len(self.archs):
            raise InputError(f"{option('archs', self.archs)}: give each architecture once")
        self._check_calibration()
        if self.frozen and self.lock is None:
            raise InputError(
                f"{option('frozen', True)} needs {option('lock')}, the lock file to read"
            )
        if self.frozen and self.tune:
            raise InputError(
                f"{option('frozen', True)} takes every choice from the lock file, but"
                f" {option('tune', True)} measures: give only one of them"
            )
        if self.budget is not None and not self.budget > 0:
            raise InputError(f"{option('budget', self.budget)}: give a time above zero")
        if self.target is not None:
            self._check_target(self.target)
        for name, shapes in self.asked_shapes.items():
            if not all(1 <= size <= LONGEST for shape in shapes.values() for size in shape):
                raise InputError(f"{option(name)}: sizes must be from 1 to {LONGEST}")
        if self.require_fused is not None and not 0 <= self.require_fused <= 100:
            raise InputError(
                f"{option('require_fused', self.require_fused)}: give a share in percent, 0 to 100"
            )
        if self.min_speedup is not None:
            self._check_min_speedup(self.min_speedup)
        if self.strategy and not self.tune:
            raise InputError(
                f"{option('strategy', self.strategy)} chooses what is measured: it needs"
                f" {option('tune', True)}"
            )
        self._check_gpus()
        if self.trials < 1:
            raise InputError(
                f"{option('trials', self.trials)}: try at least one kernel per problem"
            )
        check_comparison(self.atol, self.rtol, self.seed)

    def _check_calibration(self) -> None:
        codes = self.precision in QUANTIZED
        asked = {
            "metric": bool(self.metric),
            "calibration": self.calibration is not None,
            "calibration_method": self.calibration_method != METHODS[0],
            "max_error": self.max_error is not None,
        }
        if not codes and (name := next((name for name, given in asked.items() if given), "")):
            raise InputError(
                f"{option(name, getattr(self, name))} needs {option('precision')}"
                f" {', '.join(QUANTIZED[:-1])} or {AUTO}, not {self.precision}"
            )
        if self.metric and self.precision != AUTO:
            raise InputError(
                f"{option('metric', self.metric)} decides between precisions: it needs"
                f" {option('precision', AUTO)}"
            )
        if self.precision == AUTO and self.calibration is not None and self.max_error is None:
            raise InputError(
                f"{option('precision', AUTO)} needs {option('max_error')}, the error up to which"
                " time is gained"
            )
        if codes and self.calibration is None and self.lock is None:
            raise InputError(
                f"{option('precision', self.precision)} needs {option('calibration')}, inputs from"
                f" which scales are found, or {option('lock')}, a lock file that has them"
            )
        if self.calibration is not None and self.frozen:
            raise InputError(
                f"{option('frozen', True)} takes scales from the lock file, but"
                f" {option('calibration')} finds new ones: give only one of them"
            )
        if self.precision == "fp8" and asked["calibration_method"]:
            raise InputError(
                f"{option('calibration_method', self.calibration_method)} is for int8: an fp8 code"
                " reaches the largest magnitude"
            )
        if self.max_error is not None and not 0 <= self.max_error < math.inf:
            raise InputError(
                f"{option('max_error', self.max_error)}: give a finite number of 0 or more"
            )

    def _check_min_speedup(self, least: float) -> None:
        if not 0 <= least < math.inf:
            raise InputError(f"{option('min_speedup', least)}: give a finite number of 0 or more")
        if not (self.tune and self.library):
            raise InputError(
                f"{option('min_speedup', least)} measures the kernels on the local GPU: it needs"
                f" {option('tune', True)}, and cannot be combined with {option('library', False)}"
            )

    def _check_gpus(self) -> None:
        if self.gpus != "all" and (type(self.gpus) is not int or self.gpus < 1):
            raise InputError(f"{option('gpus', self.gpus)}: give a number from 1 on, or all")
        asked = {"gpus": self.gpus != 1, "scheduler": bool(self.scheduler)}
        for name in (name for name, given in asked.items() if given and not self.tune):
            raise InputError(
                f"{option(name, getattr(self, name))} says where kernels are measured: it needs"
                f" {option('tune', True)}"
            )
        if all(asked.values()):
            raise InputError(
                f"{option('gpus', self.gpus)} starts workers on this machine, and"
                f" {option('scheduler', self.scheduler)} has its own: give only one of them"
            )
        if self.insecure and not self.scheduler:
            raise InputError(
                f"{option('insecure', True)} is about {option('scheduler')}: give it as well"
            )

    def _check_target(self, target: float) -> None:
        if not 0 < target < math.inf:
            raise InputError(f"{option('target', target)}: give a time above zero")
        if not self.tune or self.fuse == "all":
            raise InputError(
                f"{option('target', target)} measures the whole model with ONNX Runtime: it needs"
                f" {option('tune', True)}, and cannot be combined with {option('fuse', 'all')}"
            )

    @property
    def in_floats(self) -> Options:
        """The options by which a model is optimized that has its codes already."""
        if self.precision not in QUANTIZED:
            return self
        return dataclasses.replace(
            self,
            precision="fp16",
            calibration=None,
            calibration_method=METHODS[0],
            max_error=None,
            metric="",
        )

    @property
    def untuned(self) -> Options:
        """The same without measuring: times are those of the database, else predicted."""
        return dataclasses.replace(
            self,
            tune=False,
            budget=None,
            target=None,
            min_speedup=None,
            strategy="",
            gpus=1,
            scheduler="",
            insecure=False,
        )

    @property
    def asked_shapes(self) -> dict[str, Shapes]:
        """The shapes that were given, by the name of the option."""
        asked = {
            "min_shapes": self.min_shapes,
            "opt_shapes": self.opt_shapes,
            "max_shapes": self.max_shapes,
        }
        return {name: shapes for name, shapes in asked.items() if shapes is not None}


def check_comparison(atol: float | None, rtol: float | None, seed: int) -> None:
    """Raises InputError for options with which no comparison can be made."""
    for name, bound in (("atol", atol), ("rtol", rtol)):
        if bound is not None and not 0 <= bound < math.inf:
            raise InputError(f"{option(name, bound)}: give a finite number of 0 or more")
    if seed < 0:
        raise InputError(f"{option('seed', seed)}: give a number of 0 or more")


Function = TypeVar("Function", bound=Callable[..., object])


def takes_options(function: Function) -> Function:
    """Make help() and inspect.signature show the fields of `Options` instead of `function`'s
    `**choices`."""
    own = inspect.signature(function)
    named = [
        parameter
        for parameter in own.parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    fields = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type
        )
        for field in dataclasses.fields(Options)
    ]
    function.__signature__ = own.replace(parameters=[*named, *fields])  # type: ignore[attr-defined]
    function.__doc__ = f"{inspect.getdoc(function)}\n\n{inspect.getdoc(Options)}"
    return function


def seconds(text: str) -> float:
    """'10m', '90s', '1h30m' or '45' in seconds. Raises InputError for other text and for zero."""
    parts = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?", text.strip())
    total = (
        sum(
            float(number or 0) * unit
            for number, unit in zip(parts.groups(), (3600, 60, 1), strict=True)
        )
        if parts
        else 0.0
    )
    if not total:
        raise InputError(f"{text!r} is not a time; write it as 90s, 10m or 1h30m")
    return total


def latency(text: str) -> float:
    """'0.7ms', '700us' or '0.0007s' in seconds. Raises InputError for other text and for zero."""
    parts = re.fullmatch(r"(\d{1,12}(?:\.\d{1,12})?)\s*(us|ms|s)", text.strip())
    found = float(parts[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[parts[2]] if parts else 0.0
    if not found:
        raise InputError(f"{text!r} is not a model's time; write it as 0.7ms or 700us")
    return found


def shapes(text: str) -> dict[str, tuple[int, ...]]:
    """Shapes by input name, from 'x:[1,3,224,224],y:[1,10]' (Polygraphy's form) or
    'x:1x3x224x224,y:1x10' (trtexec's).

    Raises InputError for anything else, and for sizes that no dimension has.
    """
    found: dict[str, tuple[int, ...]] = {}
    for part in re.split(r",(?![^\[]*\])", text):  # commas outside of brackets
        match = re.fullmatch(
            r"\s*([^\s\[\]]+):(?:\[\s*(\d{1,10}(?:\s*,\s*\d{1,10})*)?\s*\]|(\d{1,10}(?:x\d{1,10})*))\s*",
            part,
        )
        sizes = (
            tuple(int(size) for size in re.findall(r"\d+", match[2] or match[3] or ""))
            if match
            else (0,)
        )
        if match is None or not all(1 <= size <= LONGEST for size in sizes):
            raise InputError(
                f"{text!r} is not a list of shapes; write it as x:1x3x224x224,y:1x10 or"
                f" x:[1,3,224,224],y:[1,10], with sizes from 1 to {LONGEST}"
            )
        if match[1] in found:
            raise InputError(f"{text!r} has two shapes for {match[1]}: give one")
        found[match[1]] = sizes
    return found


def cache_directory() -> Path:
    """ONNXBOLT_CACHE_DIR, else the platform's cache directory; created if it is missing.

    Raises InputError if others may write to it, because its objects are linked into libraries.
    """
    chosen = os.environ.get("ONNXBOLT_CACHE_DIR")
    path = Path(chosen) if chosen else Path(platformdirs.user_cache_dir("onnxbolt"))
    return private_directory(path, "set ONNXBOLT_CACHE_DIR to another directory")


def cache_size() -> int:
    """ONNXBOLT_CACHE_SIZE in bytes, such as 500MB or 2GiB; 2 GiB by default. Raises InputError
    for anything else."""
    text = os.environ.get("ONNXBOLT_CACHE_SIZE") or "2GiB"
    parts = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)\s*(B|[KMGT]i?B)", text.strip())
    if parts is None:
        raise InputError(f"ONNXBOLT_CACHE_SIZE is {text!r}: write it as 500MB or 2GiB")
    return int(float(parts[1]) * (1024 if "i" in parts[2] else 1000) ** "BKMGT".index(parts[2][0]))


def cuda_home() -> Path | None:
    """CUDA_HOME, the toolkit that the user chose; None if it is not set."""
    chosen = os.environ.get("CUDA_HOME")
    return Path(chosen) if chosen else None
