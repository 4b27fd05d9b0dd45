"""The results of `onnxbolt bench`."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from dataclasses import dataclass
from typing import Any

from onnxbolt.spelling import option


@dataclass(frozen=True)
class Side:
    """One model's median time in microseconds with its fastest setting; `spread` is the distance
    from the 10th to the 90th percentile, as a part of the median; `times` are those of each run."""

    name: str
    setting: str
    us: float
    spread: float
    times: tuple[float, ...] = ()

    def percentile(self, percent: int) -> float:
        """Microseconds that so many percent of the runs do not exceed."""
        if len(self.times) < 2:
            return self.us
        return statistics.quantiles(self.times, n=100, method="inclusive")[percent - 1]

    @property
    def per_second(self) -> float:
        """Runs per second, one after the other."""
        return 1e6 / (statistics.fmean(self.times) if self.times else self.us)

    def as_dict(self) -> dict[str, Any]:
        """All fields, and the values that follow from them."""
        return dataclasses.asdict(self) | {
            "p90_us": self.percentile(90),
            "p99_us": self.percentile(99),
            "per_second": self.per_second,
        }


@dataclass(frozen=True)
class NodeTime:
    """One fused node, run by itself. `roofline` is the part of its time that its products would
    take at the data sheet's rate, or its bytes once through memory, whichever is more."""

    name: str
    op_type: str
    shape: tuple[int, ...]
    us: float
    tflops: float
    roofline: float


@dataclass(frozen=True)
class Benchmark:
    """All measured times; the fastest of `peers` is what ours is compared with."""

    ours: Side
    peers: tuple[Side, ...]
    failed: dict[str, str]  # peers that do not run: the message
    nodes: tuple[NodeTime, ...] = ()

    @property
    def peer(self) -> Side:
        return min(self.peers, key=lambda side: side.us)

    @property
    def speedup(self) -> float:
        return self.peer.us / self.ours.us

    @property
    def spread(self) -> float:
        """The spread of the speed-up, as a part of it: both sides' spreads are independent."""
        return math.hypot(self.ours.spread, self.peer.spread)

    def short_of(self, least: float | None) -> str:
        """One line if the speed-up is below `least`, else an empty text."""
        if least is None or self.speedup >= least:
            return ""
        return f"the speed-up is {self.speedup:.3f}, less than {option('min_speedup', least)}"

    def as_dict(self) -> dict[str, Any]:
        """All fields, and the values that follow from them."""
        return dataclasses.asdict(self) | {
            "ours": self.ours.as_dict(),
            "peers": [peer.as_dict() for peer in self.peers],
            "speedup": self.speedup,
            "spread": self.spread,
        }

    def json(self) -> str:
        """Everything, keys sorted."""
        return json.dumps(self.as_dict(), indent=1, sort_keys=True)
