"""The final comparison: the whole model as planned against ONNX Runtime at its best, both as
sessions.

Regions are compared one by one, and the nodes between them can lose what regions gained: the rest
of the model may prefer another layout, or a region's border may prevent a fusion by ONNX Runtime.
If the whole model is slower by more than the noise, the regions that gained least are left to ONNX
Runtime, half of them at a time, until it is not slower; if the rest cannot be measured, all of
them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from onnx import ModelProto

from onnxbolt import library
from onnxbolt.errors import InputError, LibraryError
from onnxbolt.graph.saving import save_model
from onnxbolt.measurements.keys import canonical, plain
from onnxbolt.measurements.records import Measurement, Status, wins
from onnxbolt.measurements.timings import Comparison, Timings
from onnxbolt.plan.choose import Plan
from onnxbolt.plan.ranges import Point
from onnxbolt.plan.regions import regions
from onnxbolt.tune.baseline import FUSED, ORT, Bench, Side, digest
from onnxbolt.tune.library import compiled
from onnxbolt.tune.racing import Lap, Race, RaceError, Racing, best_of
from onnxbolt.tune.sessions import Found, Source, interleave
from onnxbolt.tune.subject import Subject
from onnxbolt.tune.submodels import Fused, rounded
from onnxbolt.tune.summary import WholeModel
from onnxbolt.verify.feeds import graph_inputs, random_feeds
from onnxbolt.verify.session import RUNTIME_ERRORS

_STEPS = 4  # the last step drops all remaining regions
_ROUNDS, _RUNS = 10, 10
# KeyError: inputs that are not tensors
_FAILURES: tuple[type[Exception], ...] = (
    *RUNTIME_ERRORS,
    InputError,
    LibraryError,
    RaceError,
    KeyError,
)
SLOWER = "the whole model is slower with it than with ONNX Runtime"


def settle(
    subject: Subject, archs: Sequence[int], fuse: str, timings: Timings, chosen: Plan, bench: Bench
) -> tuple[Plan, WholeModel | None]:
    """The plan without the regions that make the whole model slower, and the times of both sides;
    None if they are unknown.

    Times that the database knows are not measured again; after the deadline of `bench` nothing is
    measured. Raises BuildError.
    """
    dropped: list[str] = []
    found: WholeModel | None = None
    with tempfile.TemporaryDirectory(prefix="onnxbolt-") as directory:
        race = _Race(subject, archs, fuse, bench, Path(directory))
        for step in range(1, _STEPS + 1):
            times = race.times(chosen) if chosen.candidates else None
            if times is not None:
                ours, theirs = times
                found = WholeModel(ours.us, theirs.us, tuple(dropped))
                if not wins(theirs.us, theirs.mad, ours.us, ours.mad):
                    break
            if found is None:
                break
            # the model was slower, and there is no time to measure less of it
            everything = step == _STEPS or times is None
            doomed = _least_convincing(chosen, bench.machine.arch, subject.ranges.opt, everything)
            dropped += [comparison.region for comparison in doomed.values()]
            timings = dataclasses.replace(timings, comparisons={**timings.comparisons, **doomed})
            chosen = subject.plan(archs, fuse, timings)
            if not chosen.candidates:
                found = WholeModel(found.ort_us, found.ort_us, tuple(dropped))
                break
    return chosen, found


def _least_convincing(
    chosen: Plan, arch: int, at: Point, everything: bool
) -> dict[str, Comparison]:
    """Comparisons that leave half of the fused regions to ONNX Runtime: those without a
    measurement, then those that gain least."""
    fused = {
        region.key: chosen.used.comparisons[region.key]
        for region in regions(chosen.assignment, arch, at)
    }
    ranked = sorted(fused.items(), key=lambda item: (item[1].measured, item[1].gain, item[0]))
    count = len(ranked) if everything else -(-len(ranked) // 2)
    return {
        key: dataclasses.replace(comparison, decided=False, reason=SLOWER)
        for key, comparison in ranked[:count]
    }


class _Race:
    """Races plans against ONNX Runtime, whose session stays; ours is made anew for each plan."""

    def __init__(
        self, subject: Subject, archs: Sequence[int], fuse: str, bench: Bench, directory: Path
    ) -> None:
        self._subject, self._archs, self._fuse, self._bench, self._directory = (
            subject,
            archs,
            fuse,
            bench,
            directory,
        )
        self._theirs: dict[Side, Found] = {}
        self._model = _structure(subject.original)

    def times(self, chosen: Plan) -> tuple[Measurement, Measurement] | None:
        """The times of our model and of ONNX Runtime's, remembered or measured; None if neither is
        possible."""
        bench, ours, theirs = self._bench, self._key(FUSED, chosen), self._key(ORT)
        if bench.database.measurements(ours):
            return self._recall(ours, theirs)
        if bench.over:
            return None
        try:
            self._measure(chosen, ours, theirs)
        except _FAILURES as error:
            why = (str(error).splitlines() or [type(error).__name__])[0][:200]
            bench.database.add(Measurement(ours, None, Status.REFUSED, detail=why))
            bench.progress(f"the whole model cannot be compared with ONNX Runtime: {why}")
        return self._recall(ours, theirs)

    def _recall(self, *keys: str) -> tuple[Measurement, Measurement] | None:
        ours, theirs = (self._bench.database.best(key) for key in keys)
        return (ours, theirs) if ours and theirs else None

    def _measure(self, chosen: Plan, *keys: str) -> None:
        """Measure both sides, interleaved."""
        original = _at(
            rounded(self._subject.original, self._subject.precision), self._subject.ranges.opt
        )
        source, racing = self._source("original", original), self._bench.racing
        if racing is None:
            ours, theirs = self._raced_here(chosen, source, original)
        else:
            ours, theirs = _raced(racing, self._fused(chosen), source)
        for key, lap in zip(keys, (ours, theirs), strict=True):
            self._bench.database.add(
                Measurement(
                    key,
                    None,
                    Status.OK,
                    lap.sample.median,
                    lap.sample.mad,
                    len(lap.sample.times),
                    detail=lap.setting,
                )
            )
        self._bench.progress(
            f"whole model: {ours.sample.median:.1f} us, ONNX Runtime {theirs.sample.median:.1f} us"
            f" ({theirs.setting})"
        )

    def _raced_here(self, chosen: Plan, source: Source, original: ModelProto) -> tuple[Lap, Lap]:
        feeds, stream = random_feeds(original), self._bench.stream
        if ORT not in self._theirs:
            self._theirs |= best_of({ORT: source}, feeds, stream)
        found = best_of({FUSED: self._fused(chosen)}, feeds, stream) | self._theirs
        samples = interleave(
            {side: found[side].session.measure for side in (FUSED, ORT)}, _ROUNDS, _RUNS
        )
        ours, theirs = (Lap(str(found[side].setting), samples[side]) for side in (FUSED, ORT))
        return ours, theirs

    def _fused(self, chosen: Plan) -> Source:
        """The model of the plan `chosen`, which is made again on another graph, with the same
        decisions, since `used` holds all of them."""
        again = self._subject.again()
        made = Fused.of(again.graph, again.plan(self._archs, self._fuse, chosen.used), self._archs)
        manifest = library.make_manifest(made.ops, made.instances)
        path = self._directory / f"{digest(manifest.digest)}.so"
        if self._bench.builds and not path.exists():
            library.build(manifest, path, self._bench.progress, compiled(manifest.instances))
        return self._source(
            manifest.digest[:16],
            _at(made.model(manifest), self._subject.ranges.opt),
            path if self._bench.builds else None,
        )

    def _source(self, name: str, model: ModelProto, path: Path | None = None) -> Source:
        """A model as a file, since it may be too large for one message."""
        file = self._directory / name / "model.onnx"
        file.parent.mkdir(exist_ok=True)
        save_model(model, file)
        return Source(name, file, path)

    def _key(self, side: str, chosen: Plan | None = None) -> str:
        plan = (
            sorted(
                [c.output.name, *(config.row() for config in chosen.configs[c.anchor.node])]
                for c in chosen.candidates
            )
            if chosen
            else []
        )
        inputs = sorted(
            [value.name, self._subject.ranges.opt.shapes.get(value.name)]
            for value in graph_inputs(self._subject.original)
        )
        return canonical(
            {
                "session": side,
                "model": self._model,
                "precision": self._subject.precision,
                "sizes": inputs,
                "plan": digest(plan),
                "machine": plain(self._bench.machine),
                **self._bench.runtime,
            }
        )


def _raced(racing: Racing, ours: Source, theirs: Source) -> tuple[Lap, Lap]:
    """The laps of both sides in another process, which gets the models as messages."""
    models = []
    for source in (theirs, ours):
        assert isinstance(source.model, Path)
        if len(list(source.model.parent.iterdir())) > 1:
            raise RaceError("its weights do not fit into one message to a worker")
        models.append(source.model.read_bytes())
    racing.submit(0, Race(models, ours.library))
    _, laps = racing.done()
    if isinstance(laps, RaceError):
        raise laps
    theirs_lap, ours_lap = laps
    assert ours_lap is not None
    assert theirs_lap is not None
    return ours_lap, theirs_lap


def _structure(model: ModelProto) -> str:
    """A digest of all but the values of weights."""
    found = hashlib.sha256()
    for part in _parts(model):
        found.update(len(part).to_bytes(8, "little") + part)
    return found.hexdigest()[:32]


def _parts(model: ModelProto) -> Iterator[bytes]:
    graph = model.graph
    for messages in (model.opset_import, model.functions, graph.node, graph.input, graph.output):
        yield from (message.SerializeToString(deterministic=True) for message in messages)
    yield from (
        repr((tensor.name, tensor.data_type, list(tensor.dims))).encode()
        for tensor in graph.initializer
    )


def _at(model: ModelProto, at: Point) -> ModelProto:
    """The model with the sizes of `at` for its inputs."""
    for value in model.graph.input:
        for dim, size in zip(
            value.type.tensor_type.shape.dim, at.shapes.get(value.name, ()), strict=False
        ):
            dim.dim_value = size
    return model
