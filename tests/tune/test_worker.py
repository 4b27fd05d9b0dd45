"""The worker's protocol, with libraries in C++ that stand in for the profiler and for
candidates, and print where they should not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from onnxbolt.families.gemm_2x import Gemm2xConfig
from onnxbolt.tune import worker

PROFILER = r"""
#include <cstdint>
#include <cstdio>
#include <cstring>
struct Facts { char name[256]; int sm, sm_count, power_limit, clock_mhz; };
static int m;
static float first, limit;
extern "C" {
const char* profiler_device(Facts* facts) {
  *facts = {"NVIDIA Stub", 90, 132, 700, 1980};
  return nullptr;
}
const char* profiler_set_problem(const char* name, int computed, int, int, const char*,
                                 const int* extents, const int*, const float* params,
                                 const float* limits) {
  if (!computed) return "out of memory";
  m = extents[0], first = params[0], limit = limits[1];
  printf("%s\n", name), fflush(stdout);
  return nullptr;
}
struct Launched { const void* kernel; const int64_t* config; int layers; };
const char* profiler_check(const Launched* kernels, int count, double* error, double* excess) {
  *error = m + first, *excess = limit;
  for (int i = 0; i < count; ++i) *error += 1000 * kernels[i].layers;
  return kernels[0].config[4] == 13 ? "refused" : nullptr;
}
const char* profiler_time(const Launched* kernels, int, int samples, int overlap, double* us,
                          int* clock) {
  for (int i = 0; i < samples; ++i) us[i] = kernels[0].config[4] + i + (overlap ? 0 : 50);
  *clock = 1755;
  return nullptr;
}
int profiler_lost() { return 0; }
}
"""
CANDIDATES = r"""
#include <cstdint>
#include <cstring>
extern "C" const void* onnxbolt_find_kernel(const char* epilogue, int element, int output,
                                            const int64_t* config) {
  const auto is = [&](const char* steps) { return !strcmp(epilogue, steps); };
  const bool last = is("Bias,Elu") && output == 1;
  const bool inner = (is("Relu,Gemm") || is("Relu") || is("Add")) && output == 10;
  return element == 10 && (last || inner) ? config : nullptr;
}
"""
PROBLEM = {
    "do": "problem",
    "computed": 1,
    "element": 10,
    "output": 1,
    "epilogue": "Bias,Elu",
    "extents": [64, 8, 8],
    "columns": [],
    "params": [0.5],
    "limits": [0.0, 0.25],
}


def compiled(directory: Path, name: str, text: str) -> Path:
    source, library = directory / f"{name}.cc", directory / f"{name}.so"
    source.write_text(text)
    subprocess.run(["g++", "-shared", "-fPIC", source, "-o", library], check=True)
    return library


class Process:
    """A worker, as the profiler starts it."""

    def __init__(self, profiler: Path) -> None:
        command = [sys.executable, "-P", worker.__file__, str(profiler)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @staticmethod
    def _pipe(stream: IO[str] | None) -> IO[str]:
        assert stream is not None
        return stream

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        stdin = self._pipe(self.process.stdin)
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        return json.loads(self._pipe(self.process.stdout).readline())


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("libraries")
    return compiled(directory, "profiler", PROFILER), compiled(directory, "candidates", CANDIDATES)


@pytest.fixture
def process(libraries: tuple[Path, Path]) -> Iterator[Process]:
    process = Process(libraries[0])
    yield process
    process.process.kill()
    process.process.communicate()


def request(
    do: str, library: Path, tile: int = 128, layers: tuple[int, ...] = (1,), **more: int
) -> dict[str, Any]:
    """About a kernel for each number of layers."""
    config = Gemm2xConfig(
        arch=90, tile=(tile, 64, 32), warp=(64, 32, 32), instruction=(16, 8, 16), stages=3
    )
    return {
        "do": do,
        "kernels": [
            {"library": str(library), "config": config.row(), "layers": count} for count in layers
        ],
        **more,
    }


def test_facts_of_the_device(process: Process) -> None:
    assert process.ask({"do": "device"}) == {
        "name": "NVIDIA Stub",
        "sm": 90,
        "sm_count": 132,
        "power_limit": 700,
        "clock_mhz": 1980,
    }


def test_a_kernel_is_checked_and_timed(process: Process, libraries: tuple[Path, Path]) -> None:
    # the library prints to the standard output; that is not taken for a reply
    assert process.ask(PROBLEM) == {}
    assert process.ask(request("check", libraries[1])) == {"error": 1064.5, "excess": 0.25}
    assert process.ask(request("time", libraries[1], samples=3, overlap=True)) == {
        "samples": [128.0, 129.0, 130.0],
        "clock_mhz": 1755,
    }
    assert process.ask(request("time", libraries[1], samples=1, overlap=False)) == {
        "samples": [178.0],
        "clock_mhz": 1755,
    }


def test_kernels_for_a_few_layers_each_are_found_by_their_part_of_the_chain(
    process: Process, libraries: tuple[Path, Path]
) -> None:
    process.ask(PROBLEM | {"epilogue": "Relu,Gemm,Gemm,Bias,Elu", "columns": [8, 8]})
    for layers in ((2, 1), (1, 2), (1, 1, 1), (3,)):
        found = process.ask(request("check", libraries[1], layers=layers))
        missing = {"failure": "the library does not have this kernel", "lost": False}
        assert found == ({"error": 3064.5, "excess": 0.25} if layers == (2, 1) else missing), layers


def test_the_last_layer_of_a_kernel_stores_its_result_anyway(
    process: Process, libraries: tuple[Path, Path]
) -> None:
    process.ask(PROBLEM | {"epilogue": "Add,Store,Gemm,Bias,Elu", "columns": [8, 8]})
    assert process.ask(request("check", libraries[1], layers=(1, 1))) == {
        "error": 2064.5,
        "excess": 0.25,
    }


def test_failures_are_replies(process: Process, libraries: tuple[Path, Path]) -> None:
    assert process.ask(PROBLEM | {"computed": 0}) == {"failure": "out of memory", "lost": False}
    process.ask(PROBLEM)
    assert process.ask(request("check", libraries[1], tile=13)) == {
        "failure": "refused",
        "lost": False,
    }
    assert "cannot be loaded" in process.ask(request("check", Path("nowhere.so")))["failure"]
    process.ask(PROBLEM | {"epilogue": "Bias"})
    assert (
        process.ask(request("check", libraries[1]))["failure"]
        == "the library does not have this kernel"
    )


def test_the_worker_ends_with_its_parent(process: Process) -> None:
    process.ask({"do": "device"})
    assert process.process.stdin is not None
    process.process.stdin.close()
    assert process.process.wait(10) == 0
    process.process.stdin = None
