"""Measures candidates in a process of their own, so that one that crashes, hangs or computes wrong
results affects no other."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from onnxbolt.codegen.digest import present_sources_digest
from onnxbolt.epilogues import EPILOGUES, MAX_PARAMS
from onnxbolt.errors import OnnxboltError
from onnxbolt.families import KernelConfig
from onnxbolt.measurements.keys import kernel_key
from onnxbolt.measurements.records import Machine, Measurement, Status, median_and_deviation
from onnxbolt.problems import Problem
from onnxbolt.spelling import option
from onnxbolt.tolerances import KERNEL
from onnxbolt.tune import worker
from onnxbolt.tune.acceptance import limits_of
from onnxbolt.tune.child import Child, LostError, RefusalError
from onnxbolt.tune.library import Uncompiled, cutlass_version, profiler_library, profiling_toolchain

_ROUNDS = 3  # candidates take turns, so that changes of the GPU's clock affect all of them
_HOPELESS = 2.0  # candidates slower than this times the best so far get no further round
# all values of a launch's decisions are tried for this many kernels, if they take at most this many
# times the best
_SWEPT, _WORTHWHILE = 3, 1.1
_START = 120.0  # seconds for loading CUDA, making operands and computing the reference
_INTERRUPTED = 10.0  # seconds that CUDA's start may go on when nobody wants it any more


class Profiler:
    """The local GPU as a stopwatch; a context manager. `command` starts the worker, by default the
    one of worker.py.

    Raises BuildError or ToolchainError if the profiler's own library cannot be built, and
    OnnxboltError if no candidate can be measured: no GPU, or no memory for the problem.
    """

    def __init__(self, arch: int, command: Sequence[str] = ()) -> None:
        self._arch = arch
        self._command = tuple(command) or worker_command(profiler_library(arch))
        self._child: Child | None = None
        self._beginning: threading.Thread | None = None
        self._device: dict[str, Any] = {}
        self._best: dict[Problem, float] = {}  # microseconds, of correct results

    def __enter__(self) -> Profiler:
        return self

    def __exit__(self, *_: object) -> None:
        if self._beginning is not None:
            self._beginning.join(_INTERRUPTED)
        self._end()

    def begin(self) -> None:
        """Start CUDA while this thread goes on, which has to ask for `machine` next."""
        self._beginning = threading.Thread(target=self._begin, daemon=True)
        self._beginning.start()

    def _begin(self) -> None:
        with contextlib.suppress(OnnxboltError):  # `machine` asks again
            self._device = self.device()

    @cached_property
    def machine(self) -> Machine:
        """The machine, toolchain and sources that times belong to."""
        if self._beginning is not None:
            self._beginning.join()
        return machine_of(self._arch, self._device or self.device())

    def device(self) -> dict[str, Any]:
        """The GPU's facts, as worker.py says."""
        return self._ask_for_all({"do": "device"})

    def measure(
        self,
        problem: Problem,
        candidates: Iterable[tuple[KernelConfig, Path | Uncompiled]],
        samples: int = 15,
        timeout: float = 10.0,
        sweep: bool = True,
        overlap: bool = True,
    ) -> list[Measurement]:
        """One measurement for each candidate, in order, whether it runs or fails; with `sweep` also
        measurements of the best kernels with other launches.

        Each is timed `samples` times (fewer if it takes twice the problem's best), with `timeout`
        seconds for its check and for each round. Without `overlap` no launch begins before the
        previous one has ended.
        """
        entries = [_Entry(config, library) for config, library in candidates]
        self._run(_Race(problem, samples, timeout, entries, overlap))
        for decision in range(_decisions(entries) if sweep else 0):
            limit = _WORTHWHILE * self._best.get(problem, math.inf)
            others = _other_launches(entries, decision, limit)
            self._run(_Race(problem, samples, timeout, others, overlap))
            entries += others
        key = kernel_key(problem, self.machine)
        return [entry.measurement(key) for entry in entries]

    def measure_apart(
        self,
        problem: Problem,
        kernels: Sequence[tuple[KernelConfig, Path, int]],
        samples: int = 15,
        timeout: float = 10.0,
        overlap: bool = True,
    ) -> Measurement:
        """Kernels that run one after another as one candidate, each for some of the problem's
        layers: the time that one kernel for all layers has to beat."""
        config, library, _ = kernels[0]
        entry, best = _Entry(config, library, tuple(kernels)), self._best.get(problem, math.inf)
        self._run(_Race(problem, samples, timeout, [entry], overlap))
        self._best[problem] = best  # the best of a single kernel
        return entry.measurement(kernel_key(problem, self.machine))

    def restart(self) -> None:
        """End the worker with all libraries that it has loaded; the next request starts another."""
        self._end()

    def _run(self, race: _Race) -> None:
        """Check all candidates, then time them in turns."""
        for entry in race.entries:
            self._check(race, entry)
        racing, best = race.entries, self._best.get(race.problem, math.inf)
        for turn in range(_ROUNDS):
            racing = [
                entry
                for entry in racing
                if entry.status is Status.OK and entry.us <= _HOPELESS * best
            ]
            for entry in racing:
                self._time(
                    race,
                    entry,
                    race.samples * (turn + 1) // _ROUNDS - race.samples * turn // _ROUNDS,
                )
            best = min(
                [
                    best,
                    *(entry.us for entry in racing if entry.samples and entry.status is Status.OK),
                ]
            )
        self._best[race.problem] = best

    def _check(self, race: _Race, entry: _Entry) -> None:
        """Check the candidate's results against the reference."""
        if isinstance(entry.library, Uncompiled):
            entry.fail(Status.UNCOMPILED, entry.library.detail)
            return
        with self._blaming(entry):
            reply = self._ask(race, race.request("check", entry))
            entry.error, excess = float(reply["error"]), float(reply["excess"])
            if not entry.error <= race.limit:
                entry.fail(
                    Status.WRONG, f"relative error {entry.error:.2g} exceeds {race.limit:.2g}"
                )
            elif not excess <= 1.0:
                entry.fail(
                    Status.WRONG, f"the error of one element is {excess:.3g} times its limit"
                )

    def _time(self, race: _Race, entry: _Entry, samples: int) -> None:
        if samples:
            with self._blaming(entry):
                reply = self._ask(
                    race,
                    race.request("time", entry) | {"samples": samples, "overlap": race.overlap},
                )
                times = [float(sample) for sample in reply["samples"]]
                if len(times) != samples or min(times) <= 0:
                    raise ValueError(f"{samples} samples asked for, {times} received")
                entry.samples += times
                entry.clock_mhz = int(reply["clock_mhz"])

    @contextlib.contextmanager
    def _blaming(self, entry: _Entry) -> Iterator[None]:
        """Attributes failures inside to the candidate, and ends the worker unless it said that it
        can go on."""
        try:
            yield
        except RefusalError as refusal:
            entry.fail(Status.REFUSED, str(refusal))
        except TimeoutError as error:
            entry.fail(Status.TIMEOUT, str(error))
            self._end()
        except (LostError, KeyError, TypeError, ValueError) as error:
            entry.fail(
                Status.CRASHED,
                (
                    str(error)
                    if isinstance(error, LostError)
                    else f"the worker's reply is damaged: {error!r}"
                ),
            )
            self._end()
        except KeyboardInterrupt:
            self._end()  # its late reply would be taken for that of the next request
            raise

    def _ask(self, race: _Race, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to a request about a problem. The worker gets the problem first, unless it
        already has it."""
        if self._started().problem != race.problem:
            self._ask_for_all(_description(race.problem))
            self._started().problem = race.problem
        return self._started().ask(request, race.timeout)

    def _ask_for_all(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to a request that concerns no candidate; its failure is an error."""
        try:
            return self._started().ask(request, _START)
        except (RefusalError, LostError, TimeoutError) as error:
            self._end()
            raise OnnxboltError(
                f"nothing can be measured on this machine's GPU: {error}. Free the GPU, or run"
                f" without {option('tune')}"
            ) from error

    def _started(self) -> Child:
        if self._child is None:
            self._child = Child(self._command)
        return self._child

    def _end(self) -> None:
        if self._child:
            self._child.kill()
            self._child = None


def worker_command(library: Path | str) -> tuple[str, ...]:
    """The command of a worker (worker.py) with the profiler's library."""
    return sys.executable, "-P", worker.__file__, str(library)


def machine_of(arch: int, device: Mapping[str, Any]) -> Machine:
    """The machine of a GPU with these facts, on which this installation's kernels run."""
    toolchain = profiling_toolchain()
    return Machine(
        device["name"],
        arch,
        device["power_limit"],
        toolchain.version,
        cutlass_version(toolchain),
        present_sources_digest(),
    )


def _description(problem: Problem) -> dict[str, Any]:
    """The request that makes `problem` the current one."""
    reference = problem.reference
    if reference is None:
        raise ValueError(f"{problem.description}: the profiler cannot compute it")
    params = [param.typical for step in problem.chain for param in EPILOGUES[step].params]
    params += [0.0] * (MAX_PARAMS - len(params))  # as many as the profiler reads
    return {
        "do": "problem",
        "computed": int(reference.computed),
        "element": problem.dtype.onnx,
        "output": problem.out.onnx,
        "epilogue": ",".join(problem.chain),
        "extents": list(reference.extents),
        "columns": list(reference.columns),
        "params": params,
        "limits": limits_of(problem, reference),
    }


def _decisions(entries: Sequence[_Entry]) -> int:
    """The most decisions that a launch of these kernels takes."""
    return max((len(e.config.family.launches(e.config)) for e in entries), default=0)


def _other_launches(entries: Sequence[_Entry], decision: int, limit: float) -> list[_Entry]:
    """The best kernels of `entries` within `limit` microseconds, with every other value that their
    families name for a launch's decision."""
    able = [e for e in entries if len(e.config.family.launches(e.config)) > decision]
    good = [e for e in able if e.status is Status.OK and e.samples and e.us <= limit]
    best = sorted(good, key=lambda entry: entry.us)[:_SWEPT]
    known = {entry.config for entry in able}
    variants = {
        config: entry.library
        for entry in best
        for config in entry.config.family.launches(entry.config)[decision]
    }
    return [_Entry(config, library) for config, library in variants.items() if config not in known]


@dataclass
class _Entry:
    """A candidate with its results so far."""

    config: KernelConfig
    library: Path | Uncompiled
    # the kernels, if the candidate is several
    apart: tuple[tuple[KernelConfig, Path, int], ...] = ()
    status: Status = Status.OK
    samples: list[float] = field(default_factory=list)
    error: float = 0.0
    clock_mhz: int = 0
    detail: str = ""

    @property
    def us(self) -> float:
        return median_and_deviation(self.samples)[0] if self.samples else 0.0

    def fail(self, status: Status, detail: str) -> None:
        self.status, self.detail = status, detail

    def measurement(self, key: str) -> Measurement:
        us, mad = (
            median_and_deviation(self.samples)
            if self.samples and self.status is Status.OK
            else (0.0, 0.0)
        )
        return Measurement(
            key,
            self.config,
            self.status,
            us,
            mad,
            len(self.samples),
            self.error,
            self.clock_mhz,
            self.detail,
        )


@dataclass(frozen=True)
class _Race:
    """The candidates of one call, which take turns."""

    problem: Problem
    samples: int
    timeout: float
    entries: list[_Entry]
    overlap: bool = True

    def request(self, do: str, entry: _Entry) -> dict[str, Any]:
        together = (entry.config, entry.library, len(self.problem.layers))
        kernels = entry.apart or (together,)
        return {
            "do": do,
            "kernels": [
                {"library": str(library), "config": config.row(), "layers": count}
                for config, library, count in kernels
            ],
        }

    @property
    def limit(self) -> float:
        return max(KERNEL[self.problem.dtype], KERNEL[self.problem.out])
