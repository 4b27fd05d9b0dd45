"""Programs that several files of this folder compile."""

from __future__ import annotations

import pytest

from tests.custom_ops.host_steps import HostSteps, build


@pytest.fixture(scope="session")
def steps(tmp_path_factory: pytest.TempPathFactory) -> HostSteps:
    """The functors of custom_ops/epilogue/ on the host."""
    return build(tmp_path_factory.mktemp("steps"))
