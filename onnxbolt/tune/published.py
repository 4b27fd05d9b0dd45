"""Measurements that come with the package: of problems that common models have, the fastest kernel
on some GPUs.

published/ has a file for each GPU, an export of a database with one row for each problem, which
`python -m benchmarks.publish` writes. They count on a GPU of that name with the same CUDA and
CUTLASS, for families whose kernels are still the same (`codegen.digest.holds`). A user's own
database and lock file come first.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnxbolt import checks, gpu
from onnxbolt.archs import by_name
from onnxbolt.codegen.digest import holds, present_sources_digest
from onnxbolt.errors import InputError, OnnxboltError
from onnxbolt.families import KernelConfig
from onnxbolt.measurements.keys import kernel_of_key
from onnxbolt.measurements.records import Machine, Measurement, Status
from onnxbolt.measurements.timings import Choice, Timings
from onnxbolt.plan.regions import Region
from onnxbolt.problems import Problem
from onnxbolt.tune.library import cutlass_version, profiling_toolchain
from onnxbolt.tune.merging import checked_rows
from onnxbolt.tune.rows import measurement_of

FOLDER = Path(__file__).with_name("published")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Published:
    """The choices for the kernels of a machine."""

    machine: Machine
    choices: Mapping[tuple[Problem, int], Choice]
    # true for kernels of which the user's own measurements say that they are no choice
    refuted: Callable[[Problem, KernelConfig], bool] = lambda problem, config: False

    def extend(
        self, timings: Timings, problems: Sequence[Problem], found: Sequence[Region]
    ) -> Timings:
        """The choices for problems of which `timings` know nothing."""
        new = {
            key: self.choices[key]
            for problem in dict.fromkeys(problems)
            if (key := (problem, self.machine.arch)) in self.choices
            and key not in timings.choices
            and key not in timings.failed
            and not self.refuted(problem, self.choices[key].config)
        }
        if not new:
            return timings
        return dataclasses.replace(
            timings,
            choices={**timings.choices, **new},
            machine=timings.machine or self.machine,
        )


def path_of(gpu_name: str, folder: Path = FOLDER) -> Path:
    """The file for GPUs that the driver calls so."""
    return folder / f"{re.sub('[^a-z0-9]+', '-', gpu_name.lower())}.jsonl.gz"


def of_local_gpu(archs: Sequence[int]) -> Published | None:
    """The measurements for device 0; None if there are none that count, or if it is of none of
    these architectures."""
    local, name = gpu.local_arch(), gpu.name()
    if local is None or name is None or by_name(local).number not in archs:
        return None
    if not path_of(name, FOLDER).is_file():
        return None
    try:
        toolchain = profiling_toolchain()
        versions = toolchain.version, cutlass_version(toolchain)
    except OnnxboltError as error:
        logger.info("the package's measurements are not used: %s", error)
        return None
    return _read(path_of(name, FOLDER), name, by_name(local).number, *versions)


@functools.cache
def _read(path: Path, name: str, arch: int, cuda: str, cutlass: str) -> Published | None:
    machine, choices = None, dict[tuple[Problem, int], Choice]()
    for measured in _rows(path):
        kernel = kernel_of_key(measured.key)
        if kernel is None or not measured.config or measured.status is not Status.OK:
            continue
        try:
            its = Machine(**checks.parsed_json(measured.key)["machine"])
            alike = (its.gpu, its.arch, its.cuda, its.cutlass) == (name, arch, cuda, cutlass)
            counts = alike and holds(its.templates, measured.family)
        except TypeError:
            raise InputError(f"{path.name} is damaged: a row's machine has other fields") from None
        if counts and (kernel not in choices or measured.us < choices[kernel].us):
            machine = dataclasses.replace(its, templates=present_sources_digest())
            choices[kernel] = Choice(measured.config, measured.us, measured.mad, published=True)
    return Published(machine, choices) if machine else None


def _rows(path: Path) -> Iterator[Measurement]:
    with checked_rows(path) as rows:
        for _, *row in rows:
            yield measurement_of(tuple(row))
