"""The profiler's worker process, as its parent sees it: it answers in time, or it is ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from onnxbolt.problems import Problem


class RefusalError(Exception):
    """The kernel or the library refused the request; the worker goes on."""


class LostError(Exception):
    """The worker ended, can no longer use the device, or sent an invalid reply."""


class Child:
    """A worker process that answers in time, or is ended."""

    def __init__(self, command: Sequence[str]) -> None:
        self.problem: Problem | None = None
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the process
        # a session of its own, so that Ctrl-C reaches the tuner alone
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
            bufsize=0,
        )
        self._buffer = b""

    def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        """The reply. Raises RefusalError, LostError, TimeoutError."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            raise LostError(self._last_words()) from None
        line = self._read_line(timeout)
        try:
            reply = json.loads(line)
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            raise LostError(f"the worker answered {line[:100]!r}")
        if "failure" in reply:
            raise (LostError if reply.get("lost") else RefusalError)(str(reply["failure"]))
        return reply

    def kill(self) -> None:
        self._process.kill()
        # a driver may keep a killed process for a while
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            if stream:
                stream.close()

    def _read_line(self, timeout: float) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise TimeoutError(f"no answer from the worker within {timeout:g} s")
            chunk = os.read(self._process.stdout.fileno(), 65536)
            if not chunk:
                raise LostError(self._last_words())
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _last_words(self) -> str:
        """How the process ended, and the last text that it wrote to standard error."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return f"the worker ended with status {self._process.returncode}" + (
            f": {lines[-1][:300]}" if lines else ""
        )
