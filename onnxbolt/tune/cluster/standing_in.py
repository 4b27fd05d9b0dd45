"""Measures kernels on GPUs of this host from this process, while their workers start."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from onnxbolt import gpu
from onnxbolt.archs import by_name
from onnxbolt.measurements.records import Machine, Measurement
from onnxbolt.problems import Problem
from onnxbolt.tune.cluster import tasks
from onnxbolt.tune.library import profiler_library
from onnxbolt.tune.measuring import Candidates
from onnxbolt.tune.profiler import Profiler, worker_command


def stand_ins(uuids: Sequence[str]) -> list[StandIn]:
    """Stand-ins for the workers of these GPUs, which are all of this process; none where these are
    of several architectures. Raises BuildError and ToolchainError."""
    local = gpu.local_arch()
    if local is None or len(set(map(gpu.compute_capability, range(len(uuids))))) != 1:
        return []
    arch = by_name(local).number
    command = worker_command(profiler_library(arch))
    return [StandIn(uuid, arch, command) for uuid in uuids]


class StandIn:
    """Measures on the GPU with this UUID in the place of the worker of this name; a context
    manager. Races of sessions need a process for each GPU, hence the worker."""

    def __init__(self, name: str, arch: int, command: Sequence[str]) -> None:
        self.name = name
        self._profiler = Profiler(arch, ("env", f"CUDA_VISIBLE_DEVICES={name}", *command))
        self._profiler.begin()  # CUDA starts while the cluster does

    def __enter__(self) -> StandIn:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._profiler.__exit__()

    @property
    def machine(self) -> Machine:
        """The machine that times belong to. Raises OnnxboltError where nothing can be measured."""
        return self._profiler.machine

    def measure(self, problem: Problem, candidates: Candidates) -> list[Measurement]:
        """As the profiler's. Raises BusyError, too."""
        with tasks.alone_on(self.name):
            return self._profiler.measure(problem, candidates)
