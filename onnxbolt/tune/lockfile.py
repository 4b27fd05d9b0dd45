"""The lock file: what a plan decided, as JSON that is reviewed and committed, so that CI builds the
same bytes without a GPU.

A lock holds, for each problem and architecture, the chosen configuration; for each sequence of
back-to-back layers, how many of them one kernel computes; for each scope that is not planned
greedily, its phases; and for each region, whether it was fused; with the times that decided,
measured or predicted. Each entry is a line, in a fixed order,
so that a changed choice is a changed line. Models that share a lock file also share --precision and
--arch.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from onnxbolt import checks
from onnxbolt.archs import names
from onnxbolt.codegen.digest import holds, kernel_sources_digest
from onnxbolt.codegen.resources import installed
from onnxbolt.errors import FrozenError, InputError
from onnxbolt.families import config_from
from onnxbolt.files import read_whole, write_whole
from onnxbolt.inspection import describe
from onnxbolt.measurements.keys import plain, problem_from
from onnxbolt.measurements.records import Machine
from onnxbolt.measurements.timings import Choice, Comparison, Cut, Scheduled, Timings
from onnxbolt.options import CODES, METHODS, PRECISIONS, QUANTIZED, Options
from onnxbolt.precision.kernel_table import release
from onnxbolt.problems import UNBOUNDED, Problem
from onnxbolt.quantize.scales import Assigned, Point, Scales
from onnxbolt.spelling import option
from onnxbolt.tune.soundness import check_choice
from onnxbolt.tune.tasks import instance_of
from onnxbolt.version import __version__

SCHEMA = 3
_LARGEST = 2**28  # bytes: half a million entries
_DIGITS = 3  # decimals of microseconds
_TIMES = ("ours_us", "ours_mad", "ort_us", "ort_mad")
logger = logging.getLogger(__name__)
_REMEDY = "run once without freezing and commit the lock file"
Key = tuple[Problem, int]
Entry = TypeVar("Entry")
Decision = TypeVar("Decision", Choice, Comparison)


@dataclass(frozen=True)
class Lock:
    """The content of a lock file; `archs` as on the command line. An empty one locks nothing."""

    precision: str = ""
    archs: tuple[str, ...] = ()
    machines: tuple[Machine, ...] = ()  # the machines of the measured entries
    choices: Mapping[Key, Choice] = field(default_factory=dict)
    comparisons: Mapping[str, Comparison] = field(default_factory=dict)
    version: str = __version__
    kernels: str | None = None  # digest of the sources, extensions' too; None: today's
    # the options for shapes that it was written with, one text for each combination
    shapes: tuple[str, ...] = ()
    cuts: Mapping[str, Cut] = field(default_factory=dict)
    # the release of ONNX Runtime whose kernels decided which nodes stay in fp32; empty if an
    # earlier version of onnxbolt wrote the file
    onnxruntime: str = ""
    extensions: tuple[str, ...] = ()  # the extensions that its choices come from
    # the options for skipped nodes that it was written with, one text for each combination
    skips: tuple[str, ...] = ("",)
    # phases of scopes that are not planned greedily
    schedules: Mapping[str, Scheduled] = field(default_factory=dict)
    quantized: Mapping[str, Scales] = field(default_factory=dict)  # by the digest of the model

    @classmethod
    def read(cls, path: Path) -> Lock:
        """The lock in a file. Raises InputError if the file is no lock file or has an unknown
        schema."""
        text = read_whole(path, _LARGEST)
        try:
            values = checks.parsed_json(text)
            if checks.integer("schema", values["schema"], 0, UNBOUNDED) != SCHEMA:
                remedy = (
                    "update onnxbolt"
                    if values["schema"] > SCHEMA
                    else "delete the file and run `onnxbolt optimize --lock` again"
                )
                raise InputError(
                    f"{path} has schema version {values['schema']}, this version of onnxbolt knows"
                    f" {SCHEMA}: {remedy}"
                )
            named = _read({"extensions": [], **values}, "extensions", _extension)
            extensions = installed(str(path), tuple(named))
            return cls(
                checks.entry("precision", values["precision"], (*PRECISIONS, *QUANTIZED)),
                tuple(_read(values, "archs", lambda arch: checks.entry("arch", arch, names()))),
                tuple(_read(values, "machines", _machine)),
                dict(_read(values, "choices", _choice)),
                dict(_read(values, "regions", _comparison)),
                checks.text("onnxbolt", values["onnxbolt"]),
                checks.text("kernels", values["kernels"]),
                tuple(_read(values, "shapes", lambda shapes: checks.text("shapes", shapes))),
                dict(_read(values, "cuts", _cut)),
                _release(values.get("onnxruntime", "")),
                extensions,
                tuple(
                    _read(
                        {"skips": [""], **values}, "skips", lambda each: checks.text("skips", each)
                    )
                ),
                dict(_read({"scopes": [], **values}, "scopes", _scheduled)),
                _quantized({"quantized": [], "scales": [], "front": [], "decisions": [], **values}),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path} is not a lock file, or damaged ({error}): restore it, or delete it"
                " and run `onnxbolt optimize --lock` again"
            ) from error

    def write(self, path: Path) -> None:
        """The file appears whole or not at all; the same lock gives the same bytes."""
        write_whole(path, self.text())

    def text(self) -> str:
        """JSON, keys sorted, one entry to a line."""
        values = {
            "archs": json.dumps(self.archs),
            "choices": _lines(_choice_row(*item) for item in self.choices.items()),
            "cuts": _lines(
                {"key": key, **dataclasses.asdict(cut)} for key, cut in self.cuts.items()
            ),
            "kernels": json.dumps(self.kernels or kernel_sources_digest(self.extensions)),
            "machines": _lines(map(dataclasses.asdict, self.machines)),
            "onnxbolt": json.dumps(self.version),
            "onnxruntime": json.dumps(self.onnxruntime),
            "precision": json.dumps(self.precision),
            "regions": _lines(_region_row(*item) for item in self.comparisons.items()),
            "schema": str(SCHEMA),
            "shapes": json.dumps(self.shapes),
            **({"skips": json.dumps(self.skips)} if any(self.skips) else {}),
            **({"extensions": json.dumps(self.extensions)} if self.extensions else {}),
            **(
                {"scopes": _lines(_scope_row(*item) for item in self.schedules.items())}
                if self.schedules
                else {}
            ),
            **(
                {
                    "quantized": _lines(map(_quantized_row, self.quantized.values())),
                    "scales": _lines(
                        row for found in self.quantized.values() for row in _scale_rows(found)
                    ),
                    **{
                        part: _lines(
                            {"model": found.model, **dataclasses.asdict(row)}
                            for found in self.quantized.values()
                            for row in getattr(found, fields)
                        )
                        for part, fields in (("front", "points"), ("decisions", "decisions"))
                        if any(found.chosen for found in self.quantized.values())
                    },
                }
                if self.quantized
                else {}
            ),
        }
        return (
            "{\n"
            + ",\n".join(f'"{name}": {value}' for name, value in sorted(values.items()))
            + "\n}\n"
        )

    def timings(self, frozen: bool = True) -> Timings:
        """The timings for the planner: frozen, all decisions and nothing else; otherwise measured
        decisions."""
        if frozen:
            return Timings(
                dict(self.choices),
                dict(self.comparisons),
                frozen=True,
                cuts=dict(self.cuts),
                schedules=dict(self.schedules),
            )
        own = {key: choice for key, choice in self.choices.items() if not choice.published}
        return Timings(_measured(own), _measured(self.comparisons))

    @property
    def same_kernels(self) -> bool:
        """True if it was written for today's kernels, or for sources of which no family's kernels
        have changed."""
        if self.kernels is None or self.kernels == kernel_sources_digest(self.extensions):
            return True
        return not self.extensions and holds(self.kernels)

    def updated(
        self, used: Timings, options: Options, archs: Sequence[str], onnxruntime: str = ""
    ) -> Lock:
        """The lock with the decisions of a plan that was made with `options` for a release of ONNX
        Runtime.

        Decisions of other models stay, as do the times of unchanged choices. Decisions about
        kernels that have changed are dropped.
        """
        kept = self if self.same_kernels else Lock()
        machines = {
            (machine.gpu, machine.arch): machine
            for machine in (*kept.machines, *([used.machine] if used.machine else []))
        }
        choices = {
            key: _steady(kept.choices.get(key), choice) for key, choice in used.choices.items()
        }
        choices = {**kept.choices, **choices}
        comparisons = {key: _decided(found) for key, found in used.comparisons.items()}
        extensions = _extensions(choices)
        schedules = {**kept.schedules, **(used.schedules or {})}
        return Lock(
            options.precision,
            tuple(archs),
            tuple(machines[key] for key in sorted(machines)),
            choices,
            {**kept.comparisons, **comparisons},
            kernels=kernel_sources_digest(extensions),
            shapes=tuple(sorted({*kept.shapes, shapes_of(options)})),
            skips=tuple(sorted({*(kept.skips if kept.shapes else ()), skips_of(options)})),
            cuts={**kept.cuts, **used.cuts},
            onnxruntime=onnxruntime,
            extensions=extensions,
            schedules={key: found for key, found in schedules.items() if found.phases},
            quantized=self.quantized,
        )

    def with_scales(self, scales: Scales) -> Lock:
        """The lock with the scales of a model, which replace older ones."""
        return dataclasses.replace(self, quantized={**self.quantized, scales.model: scales})


def open_for(options: Options) -> Lock:
    """The lock that `options` name; empty if there is none yet.

    Raises InputError if it has another precision. With --frozen, raises FrozenError if it is
    missing or was written for other kernels, other shapes or another release of ONNX Runtime.
    """
    if options.lock is None:
        return Lock()
    path = Path(options.lock)
    if not path.exists():
        if options.frozen:
            raise FrozenError(f"{option('frozen', True)}: {path} does not exist; {_REMEDY}")
        return Lock()
    lock = Lock.read(path)
    if lock.precision != options.precision:
        raise InputError(
            f"{path} was written with {option('precision', lock.precision)}, not"
            f" {options.precision}: give the same precision, or another file"
        )
    if not lock.same_kernels:
        _refuse_other_kernels(path, lock, options.frozen)
        return Lock()
    if options.frozen and (asked := shapes_of(options)) not in lock.shapes:
        written = " or ".join(shapes or "no options for shapes" for shapes in lock.shapes)
        raise FrozenError(
            f"{option('frozen', True)}: {path} was written with {written}, but this run has"
            f" {asked or 'no options for shapes'}: give the same, or {_REMEDY}"
        )
    if options.frozen and (asked := skips_of(options)) not in lock.skips:
        written = " or ".join(skips or "no nodes skipped" for skips in lock.skips)
        raise FrozenError(
            f"{option('frozen', True)}: {path} was written with {written}, but this run has"
            f" {asked or 'no nodes skipped'}: give the same, or {_REMEDY}"
        )
    asked_for = release(options.ort_version) if options.ort_version else ""
    if options.frozen and lock.onnxruntime and asked_for and asked_for != lock.onnxruntime:
        raise FrozenError(
            f"{option('frozen', True)}: {path} was written for ONNX Runtime {lock.onnxruntime}, not"
            f" {asked_for}: give the same, or {_REMEDY}"
        )
    if lock.version != __version__:
        logger.warning(
            "%s was written by onnxbolt %s, this is %s; both have the same kernels, so it is used",
            path,
            lock.version,
            __version__,
        )
    return lock


def shapes_of(options: Options) -> str:
    """The options for shapes as on a command line, inputs sorted; empty if there are none."""
    texts = {
        f"--{name.replace('_', '-')}": ",".join(
            f"{name}:[{','.join(map(str, shape))}]" for name, shape in sorted(shapes.items())
        )
        for name, shapes in options.asked_shapes.items()
    }
    return " ".join(f"{flag} {text}" for flag, text in texts.items())


def skips_of(options: Options) -> str:
    """The options for skipped nodes as on a command line, sorted; empty if there are none."""
    given = (
        ("--skip-node", options.skip_nodes),
        ("--skip-rule", options.skip_rules),
        ("--only-rule", options.only_rules),
    )
    return shlex.join(
        part for flag, names in given for name in sorted(set(names)) for part in (flag, name)
    )


def _refuse_other_kernels(path: Path, lock: Lock, frozen: bool) -> None:
    extended = f" with the extensions {', '.join(lock.extensions)}" if lock.extensions else ""
    message = (
        f"{path} was written by onnxbolt {lock.version}{extended}, whose kernels differ from those"
        f" of this one ({__version__})"
    )
    if frozen:
        raise FrozenError(
            f"{option('frozen', True)}: {message}; {_REMEDY}, or install onnxbolt {lock.version}"
        )
    logger.warning("%s: its choices are not used, and are made again", message)


def _measured(decisions: Mapping[Any, Decision]) -> dict[Any, Decision]:
    return {key: decision for key, decision in decisions.items() if decision.measured}


def _steady(old: Choice | None, new: Choice) -> Choice:
    """The old choice if only its time differs."""
    same = old and dataclasses.replace(old, us=new.us, mad=new.mad) == new
    return old if old and same else new


def _decided(comparison: Comparison) -> Comparison:
    return dataclasses.replace(comparison, decided=comparison.fused)


# --- rows: "kernel", "what" and "region" are only for readers of the file -------------------------


def _choice_row(key: Key, choice: Choice) -> dict[str, object]:
    problem, arch = key
    return {
        "arch": arch,
        "kind": type(problem).__name__,
        "problem": plain(problem),
        "what": problem.description,
        "config": choice.config.row(),
        "kernel": describe(choice.config),
        "measured": choice.measured,
        **({"model": choice.model} if choice.model else {}),
        **({"published": True} if choice.published else {}),
        "us": _us(choice.us),
        "mad": _us(choice.mad),
    }


def _choice(row: Mapping[str, Any]) -> tuple[Key, Choice]:
    config = config_from(row["config"])
    problem = problem_from(row["kind"], row["problem"])
    check_choice(problem, row["arch"], config)
    us, mad = (checks.number(name, row[name]) for name in ("us", "mad"))
    model = checks.text("model", row.get("model", ""))
    measured = checks.boolean("measured", row["measured"])
    published = checks.boolean("published", row.get("published", False))
    choice = Choice(config, us, mad, measured, model, published)
    return (problem, config.arch), choice


def _machine(row: Mapping[str, Any]) -> Machine:
    machine = Machine(**row)
    for part in ("gpu", "cuda", "cutlass", "templates"):
        checks.text(part, getattr(machine, part))
    for part in ("arch", "power_limit"):
        checks.integer(part, getattr(machine, part), 0, UNBOUNDED)
    return machine


def _region_row(key: str, comparison: Comparison) -> dict[str, object]:
    times = {name: _us(getattr(comparison, name)) for name in _TIMES}
    reason = {"reason": comparison.reason} if comparison.reason else {}
    return {
        "fused": comparison.fused,
        "key": key,
        "measured": comparison.measured,
        "region": comparison.region,
        **reason,
        **times,
    }


def _comparison(row: Mapping[str, Any]) -> tuple[str, Comparison]:
    ours, our_mad, theirs, their_mad = (checks.number(name, row[name]) for name in _TIMES)
    measured, fused = (checks.boolean(name, row[name]) for name in ("measured", "fused"))
    region, reason = (
        checks.text("region", row["region"]),
        checks.text("reason", row.get("reason", "")),
    )
    return checks.text("key", row["key"]), Comparison(
        ours, our_mad, theirs, their_mad, measured, fused, region, reason=reason
    )


def _cut(row: Mapping[str, Any]) -> tuple[str, Cut]:
    return checks.text("key", row["key"]), Cut(
        checks.integer("layers", row["layers"], 1, UNBOUNDED), checks.text("chain", row["chain"])
    )


def _scope_row(key: str, found: Scheduled) -> dict[str, object]:
    return {"key": key, "phases": found.phases, "scope": found.scope}


def _scheduled(row: Mapping[str, Any]) -> tuple[str, Scheduled]:
    phases = (checks.integer("phases", phase, 0, UNBOUNDED) for phase in row["phases"])
    return checks.text("key", row["key"]), Scheduled(
        tuple(phases), checks.text("scope", row["scope"])
    )


def _quantized_row(found: Scales) -> dict[str, object]:
    return {
        "batches": found.batches,
        "data": found.data,
        "errors": dict(found.errors),
        **({"chosen": found.points.index(found.chosen)} if found.chosen else {}),
        **({"floats": found.floats} if found.chosen else {}),
        "left": list(found.left),
        "method": found.method,
        "model": found.model,
        "to": found.precision,
    }


def _scales(row: Mapping[str, Any]) -> Scales:
    """All but the scales, which have rows of their own."""
    errors = {
        checks.text("error", name): checks.number("error", value)
        for name, value in row["errors"].items()
    }
    return Scales(
        checks.text("model", row["model"]),
        checks.entry("to", row["to"], CODES),
        checks.entry("method", row["method"], METHODS),
        checks.integer("batches", row["batches"], 1, UNBOUNDED),
        checks.text("data", row["data"]),
        {},
        errors=errors,
        left=tuple(checks.text("left", name) for name in row["left"]),
        floats=checks.entry("floats", row.get("floats", "fp16"), PRECISIONS),
    )


def _point(row: Mapping[str, Any]) -> tuple[str, Point]:
    return checks.text("model", row["model"]), Point(
        checks.entry("precision", row["precision"], (*PRECISIONS, *CODES)),
        checks.integer("products", row["products"], 0, UNBOUNDED),
        checks.number("us", row["us"]),
        checks.number("error", row["error"]),
    )


def _decision(row: Mapping[str, Any]) -> tuple[str, Assigned]:
    return checks.text("model", row["model"]), Assigned(
        checks.text("node", row["node"]),
        checks.entry("precision", row["precision"], (*PRECISIONS, *CODES)),
        *(checks.number(name, row[name]) for name in ("us", "floats_us", "error")),
    )


def _scale_rows(found: Scales) -> Iterator[dict[str, object]]:
    for tensor in sorted({*found.scales, *found.balanced}):
        row: dict[str, object] = {"model": found.model, "tensor": tensor}
        if tensor in found.scales:
            row["scale"] = found.scales[tensor]
        if tensor in found.balanced:
            row["balanced"] = list(found.balanced[tensor])
        yield row


def _scale(row: Mapping[str, Any]) -> tuple[str, str, float | None, tuple[int, ...]]:
    """A model, a tensor, its scale and the powers of its channels. Raises ValueError for a scale by
    which nothing could be divided."""
    scale = row.get("scale")
    if scale is not None and not np.finfo(np.float32).tiny <= checks.number("scale", scale) < 1e38:
        raise ValueError(f"scale {scale} is no positive number of fp32")
    powers = (checks.integer("balanced", power, -30, 30) for power in row.get("balanced", ()))
    model, tensor = (checks.text(name, row[name]) for name in ("model", "tensor"))
    return model, tensor, scale, tuple(powers)


def _quantized(values: Mapping[str, Any]) -> dict[str, Scales]:
    found = tuple(_read(values, "quantized", _scales))
    chosen = [row.get("chosen") for row in values["quantized"]]
    rows = tuple(_read(values, "scales", _scale))
    points = tuple(_read(values, "front", _point))
    decisions = tuple(_read(values, "decisions", _decision))
    result = dict[str, Scales]()
    for each, place in zip(found, chosen, strict=True):
        own = tuple(point for model, point in points if model == each.model)
        if place is not None:
            checks.integer("chosen", place, 0, len(own) - 1)
        result[each.model] = dataclasses.replace(
            each,
            scales={t: scale for model, t, scale, _ in rows if model == each.model and scale},
            balanced={t: powers for model, t, _, powers in rows if model == each.model and powers},
            points=own,
            chosen=None if place is None else own[place],
            decisions=tuple(row for model, row in decisions if model == each.model),
        )
    return result


def _extensions(choices: Mapping[Key, Choice]) -> tuple[str, ...]:
    """The extensions that the chosen kernels come from."""
    instances = (instance_of(problem, choice.config) for (problem, _), choice in choices.items())
    return tuple(sorted({name for instance in instances for name in instance.extensions}))


def _extension(value: object) -> str:
    return checks.name("extension", value)


def _release(value: object) -> str:
    return release(checks.text("onnxruntime", value)) if value else ""


def _read(values: Mapping[str, Any], part: str, entry: Callable[[Any], Entry]) -> Iterator[Entry]:
    """The entries of one part of the file. Raises ValueError, which names the entry, for any
    fault."""
    if not isinstance(values[part], list):
        raise ValueError(f"{part}: a list is expected")
    for number, row in enumerate(values[part], 1):
        try:
            yield entry(row)
        except Exception as error:  # a file that was edited or merged by hand can hold anything
            raise ValueError(
                f"entry {number} of {part}: {type(error).__name__}: {error}"
            ) from error


def _us(value: float) -> float:
    return round(value, _DIGITS)


def _lines(rows: Iterable[Mapping[str, object]]) -> str:
    """A JSON list with one row per line, sorted by what each row decides, so that a changed
    decision keeps its place."""
    lines = [json.dumps(row, sort_keys=True) for row in sorted(rows, key=_about)]
    return "[\n" + ",\n".join(lines) + "\n]" if lines else "[]"


def _about(row: Mapping[str, object]) -> str:
    return json.dumps(
        [row.get(name) for name in ("arch", "kind", "problem", "key", "gpu", "model", "tensor")],
        sort_keys=True,
    )
