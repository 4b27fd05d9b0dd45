"""Arguments that a kernel has to refuse."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.gpu.device import KernelError


def assert_refused(kernel: Any, arguments: Any, cases: Iterable[tuple[str, object, str]]) -> None:
    """Each (field, value, reason): with this value the kernel gives that reason, and nothing
    speaks against the arguments as they are."""
    for field, value, reason in cases:
        kept = getattr(arguments, field)
        setattr(arguments, field, value)
        with pytest.raises(KernelError, match=reason):
            kernel.check(arguments)
        setattr(arguments, field, kept)
    kernel.check(arguments)
