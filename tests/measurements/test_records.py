"""The rule for noise."""

from __future__ import annotations

import pytest

from onnxbolt.measurements.records import wins


@pytest.mark.parametrize(
    ("ours", "our_mad", "theirs", "their_mad", "won"),
    [
        (98.1, 0.0, 100.0, 0.0, False),
        (97.9, 0.0, 100.0, 0.0, True),  # 2% are noise whatever the samples say
        (90.0, 3.5, 100.0, 0.0, False),
        (90.0, 3.3, 100.0, 0.0, True),  # as are three deviations of ours
        (90.0, 0.0, 100.0, 3.5, False),
        (90.0, 0.0, 100.0, 3.3, True),  # or of theirs
        (110.0, 0.0, 100.0, 0.0, False),
    ],
)
def test_a_gain_has_to_exceed_the_noise(
    ours: float, our_mad: float, theirs: float, their_mad: float, won: bool
) -> None:
    assert wins(ours, our_mad, theirs, their_mad) is won
