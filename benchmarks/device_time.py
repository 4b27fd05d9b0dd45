"""The device time of each side, with runs enqueued back to back: the host's cost of each run, which
hides small models, is left out, unless a run has more launches than can be enqueued."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from onnxbolt.tune.cuda import Stream
from onnxbolt.tune.sessions import Arrays, Found, interleave, only
from onnxbolt.verify.session import RUNTIME_ERRORS


@dataclass(frozen=True)
class DeviceTime:
    """Microseconds of a run; if not `queued`, of one by itself, the host's cost included."""

    us: float
    queued: bool = True


def device_times(
    found: Mapping[str, Found],
    feeds: Arrays,
    stream: Stream | None,
    rounds: int,
    runs: int,
    settle: float = 0.0,
    capture: bool = True,
) -> dict[str, DeviceTime]:
    """That of each side.

    A side's time is the faster of its best session and the same with a CUDA graph, where that has
    none: one run alone may be as fast without. Unless `capture`, no such session is tried.
    """
    sessions = {(name, side.setting.graph): side.session for name, side in found.items()}
    for name, side in found.items():
        if capture and stream and not side.setting.graph:
            with contextlib.suppress(*RUNTIME_ERRORS):  # some models cannot be captured
                captured = only(
                    side.source, dataclasses.replace(side.setting, graph=True), feeds, stream
                )
                sessions[name, True] = captured.session
    samples = interleave({p: s.measure_queued for p, s in sessions.items()}, rounds, runs, settle)
    times = dict[str, DeviceTime]()
    for place in sorted(sessions, key=lambda p: samples[p].median):
        times.setdefault(place[0], DeviceTime(samples[place].median, sessions[place].queues))
    return {name: times[name] for name in found}
