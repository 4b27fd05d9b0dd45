"""The device time of each side, with runs enqueued back to back: the host's cost of each run, which
hides small models, is left out."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping

from onnxbolt.tune.cuda import Stream
from onnxbolt.tune.sessions import Arrays, Found, interleave, only
from onnxbolt.verify.session import RUNTIME_ERRORS


def device_times(
    found: Mapping[str, Found], feeds: Arrays, stream: Stream | None, rounds: int, runs: int
) -> dict[str, float]:
    """Microseconds of each side.

    A side's time is the faster of its best session and the same with a CUDA graph, where that has
    none: one run alone may be as fast without.
    """
    measures = {
        (name, side.setting.graph): side.session.measure_queued for name, side in found.items()
    }
    for name, side in found.items():
        if stream and not side.setting.graph:
            with contextlib.suppress(*RUNTIME_ERRORS):  # some models cannot be captured
                captured = only(
                    side.source, dataclasses.replace(side.setting, graph=True), feeds, stream
                )
                measures[name, True] = captured.session.measure_queued
    medians = {place: sample.median for place, sample in interleave(measures, rounds, runs).items()}
    return {name: min(us for (side, _), us in medians.items() if side == name) for name in found}
