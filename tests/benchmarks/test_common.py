"""The clock."""

import pytest

from benchmarks.common import ClockSampler


def test_clock_is_none_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with ClockSampler() as clock:
        pass
    assert clock.mhz is None
