"""What both sides take on the device, runs behind one another: without what each run costs the host, which hides small models."""
from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping

from onnxbolt.tune.cuda import Stream
from onnxbolt.tune.sessions import Arrays, Found, interleave, only
from onnxbolt.verify.session import RUNTIME_ERRORS


def device_times(found: Mapping[str, Found], feeds: Arrays, stream: Stream | None, rounds: int, runs: int) -> dict[str, float]:
    """Fields of a row: microseconds of "ours" and "peer", and their ratio.

    Each side has its best session, and the same with a CUDA graph where that has none: one run alone may be as fast without.
    """
    measures = {(name, side.setting.graph): side.session.measure_queued for name, side in found.items()}
    for name, side in found.items():
        if stream and not side.setting.graph:
            with contextlib.suppress(*RUNTIME_ERRORS):  # what cannot be captured
                captured = only(side.source, dataclasses.replace(side.setting, graph=True), feeds, stream)
                measures[name, True] = captured.session.measure_queued
    medians = {place: sample.median for place, sample in interleave(measures, rounds, runs).items()}
    ours, peer = (min(us for (name, _), us in medians.items() if name == side) for side in ("ours", "peer"))
    return {"device_us": round(ours, 2), "peer_device_us": round(peer, 2), "device_ratio": round(peer / ours, 3)}
