"""The process that runs candidates, so that a crash does not end the tuner: `python -m
onnxbolt.tune.worker PROFILER.so`.

Each line of the standard input is a request, each line of the standard output its reply, both JSON
objects:

    {"do": "device"}
        {"name", "sm", "sm_count", "power_limit", "clock_mhz"}
    {"do": "problem", "computed", "element", "output", "epilogue", "extents", "columns", "params",
     "limits"}
        {}
    {"do": "check", "kernels"}
        {"error": relative L2 of the first set's output,
         "excess": the largest error of one value in parts of its limit}
    {"do": "time", "kernels", "samples", "overlap"}
        {"samples": [microseconds, ..], "clock_mhz"}

Instead of any of them, a reply can be {"failure": message, "lost": true if the device is unusable
from here on}. `kernels` are objects {"library", "config", "layers"}, which are launched one after
the other, each for so many of the problem's layers: of the last problem's types and epilogue.
`overlap` is whether a launch may begin while the one before it ends, as it does in a model. The
standard library alone is imported: starting anew has to be quick.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO

Reply = dict[str, Any]
PRODUCT, STORE = "Gemm", "Store"  # onnxbolt/epilogues/, which this module does not import


class ProfilerError(Exception):
    """An error message of the profiler or of a kernel."""


class DeviceFacts(ctypes.Structure):
    """custom_ops/profiler/profiler.cu: DeviceFacts."""

    _fields_ = [
        ("name", ctypes.c_char * 256),
        *((name, ctypes.c_int) for name in ("sm", "sm_count", "power_limit", "clock_mhz")),
    ]


class Launched(ctypes.Structure):
    """custom_ops/profiler/profiler.cu: Launched."""

    _fields_ = [
        ("kernel", ctypes.c_void_p),
        ("config", ctypes.POINTER(ctypes.c_int64)),
        ("layers", ctypes.c_int),
    ]


class Worker:
    """The profiler's functions, one method for each request."""

    def __init__(self, profiler: str) -> None:
        self._profiler = ctypes.CDLL(profiler)
        self._problem: Reply = {}

    def answer(self, request: Reply) -> Reply:
        """The reply to one request; failures of kernels are replies, too."""
        requests: dict[str, Callable[[Reply], Reply]] = {
            "device": self._device,
            "problem": self._set_problem,
            "check": self._check,
            "time": self._time,
        }
        try:
            return requests[request["do"]](request)
        except ProfilerError as failure:
            return {"failure": str(failure), "lost": bool(self._profiler.profiler_lost())}

    def _device(self, _: Reply) -> Reply:
        facts = DeviceFacts()
        self._call("profiler_device", ctypes.byref(facts))
        return {name: getattr(facts, name) for name, *_ in DeviceFacts._fields_[1:]} | {
            "name": facts.name.decode()
        }

    def _set_problem(self, request: Reply) -> Reply:
        extents, columns, params = (request[name] for name in ("extents", "columns", "params"))
        self._call(
            "profiler_set_problem",
            json.dumps(request).encode(),
            request["computed"],
            request["element"],
            request["output"],
            request["epilogue"].encode(),
            (ctypes.c_int * len(extents))(*extents),
            (ctypes.c_int * len(columns))(*columns),
            (ctypes.c_float * len(params))(*params),
            (ctypes.c_float * len(request["limits"]))(*request["limits"]),
        )
        self._problem = request
        return {}

    def _check(self, request: Reply) -> Reply:
        error, excess = ctypes.c_double(), ctypes.c_double()
        self._call(
            "profiler_check", *self._kernels(request), ctypes.byref(error), ctypes.byref(excess)
        )
        return {"error": error.value, "excess": excess.value}

    def _time(self, request: Reply) -> Reply:
        samples, clock = (ctypes.c_double * request["samples"])(), ctypes.c_int()
        self._call(
            "profiler_time",
            *self._kernels(request),
            request["samples"],
            int(request["overlap"]),
            samples,
            ctypes.byref(clock),
        )
        return {"samples": list(samples), "clock_mhz": clock.value}

    def _kernels(self, request: Reply) -> tuple[ctypes.Array[Launched], int]:
        """The kernels of a request, and their number."""
        first, kernels = 0, []
        for kernel in request["kernels"]:
            kernels.append(
                self._kernel(kernel["library"], kernel["config"], first, kernel["layers"])
            )
            first += kernel["layers"]
        return (Launched * len(kernels))(*kernels), len(kernels)

    def _kernel(self, path: str, config: list[int], first: int, layers: int) -> Launched:
        """The kernel for some of the problem's layers, and its row of numbers."""
        try:
            library = ctypes.CDLL(path)  # loaded once, however often it is called
        except OSError as error:
            raise ProfilerError(f"the library cannot be loaded: {error}") from error
        row = (ctypes.c_int64 * len(config))(*config)
        chains = _layers(self._problem["epilogue"])
        epilogue = ",".join(
            step for chain in chains[first : first + layers] for step in (PRODUCT, *chain)
        )
        last = first + layers == len(chains)
        # the last result is always stored
        epilogue = epilogue.removeprefix(PRODUCT).removesuffix("" if last else STORE).strip(",")
        output = self._problem["output" if last else "element"]
        library.onnxbolt_find_kernel.restype = ctypes.c_void_p
        found = library.onnxbolt_find_kernel(
            epilogue.encode(), self._problem["element"], output, row
        )
        if not found:
            raise ProfilerError("the library does not have this kernel")
        return Launched(found, row, layers)

    def _call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._profiler, name)
        function.restype = ctypes.c_char_p
        if text := function(*arguments):
            raise ProfilerError(text.decode(errors="replace"))


def _layers(epilogue: str) -> list[list[str]]:
    """The steps behind each product: "Bias,Gemm,Relu" -> [["Bias"], ["Relu"]]."""
    found: list[list[str]] = [[]]
    for step in filter(None, epilogue.split(",")):
        if step == PRODUCT:
            found.append([])
        else:
            found[-1].append(step)
    return found


def _requests() -> queue.SimpleQueue[str]:
    """Lines of the standard input, read by a thread: when the parent ends, this process ends, too,
    even while a kernel hangs."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _replies() -> TextIO:
    """The standard output, for replies alone: from here on, prints of kernels and libraries go to
    the standard error."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return replies


def main() -> None:
    replies, requests = _replies(), _requests()
    worker = Worker(sys.argv[1])
    while True:
        reply = worker.answer(json.loads(requests.get()))
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
