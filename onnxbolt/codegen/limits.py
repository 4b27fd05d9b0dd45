"""Limits for compilers, so that no source, wherever it comes from, takes a machine for itself.

Each process of a build (nvcc, cicc, ptxas, g++, ld) may use `CPU_SECONDS` of processor time, which
a busy machine does not use up faster, `MEMORY` bytes of address space and files of `FILE` bytes.
The largest unit of a library takes some minutes and 3 GB. Lower limits of the user stay.

This file also runs as a script, which sets the limits and becomes the command. Python's
`preexec_fn` cannot do this, since it is not safe in a process with threads.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

CPU_SECONDS, MEMORY, FILE = 3600, 16 * 2**30, 4 * 2**30


def limited(command: Sequence[str]) -> list[str]:
    """The command line that runs `command` with the limits."""
    return [
        sys.executable,
        "-I",
        __file__,
        *(str(limit) for limit in (CPU_SECONDS, MEMORY, FILE)),
        *command,
    ]


def described() -> str:
    """The limits in words, for a message."""
    return (
        f"each compiler process is limited to {CPU_SECONDS} s of CPU time and"
        f" {MEMORY / 2**30:.3g} GiB of memory"
    )


def _become(limits: Sequence[str], command: Sequence[str]) -> None:
    import resource  # Windows, where nothing can be compiled, has no such module

    kinds = (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_FSIZE)
    for kind, text in zip(kinds, limits, strict=True):
        _, hard = resource.getrlimit(kind)
        limit = int(text) if hard == resource.RLIM_INFINITY else min(int(text), hard)
        # at the soft limit of processor time a process ends by a signal that names it
        resource.setrlimit(kind, (limit, hard))
    os.execvp(command[0], list(command))


if __name__ == "__main__":
    _become(sys.argv[1:4], sys.argv[4:])
