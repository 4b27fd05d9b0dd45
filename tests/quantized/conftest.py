"""The fixture of tests of fused products of codes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.quantized import kernels


@pytest.fixture
def products() -> Iterator[None]:
    """With kernels for products of codes."""
    with kernels.registered():
        yield
