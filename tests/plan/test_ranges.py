"""Ranges: which sizes a plan is for, and the tables that nodes carry for them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from models import build
from onnxbolt import optimize
from onnxbolt.archs import ARCHS
from onnxbolt.cli import main
from onnxbolt.errors import InputError
from onnxbolt.families import KernelConfig
from onnxbolt.families.base import Schedule
from onnxbolt.families.gemm_sm90 import GemmSm90Config
from onnxbolt.match.matcher import match
from onnxbolt.match.partition import partition
from onnxbolt.measurements.timings import NOTHING, Choice, Timings
from onnxbolt.opspec import configs_of_node
from onnxbolt.options import Options, shapes
from onnxbolt.plan.choose import Plan, plan
from onnxbolt.plan.cost import candidates
from onnxbolt.plan.ranges import FIXED, ranges_of, table
from onnxbolt.plan.regions import regions
from onnxbolt.problems import UNBOUNDED, GemmProblem, Problem
from onnxbolt.tune.lockfile import Lock
from onnxbolt.tune.subject import Subject
from onnxbolt.tune.tasks import tasks_of
from tests.e2e.bodies import COUNT, in_branches, in_loop, in_scan
from tests.support import Net, prepare

ONE = GemmSm90Config(
    arch=90, rows=128, columns=64, k=64, schedule=Schedule.COOPERATIVE, consumers=2
)
OTHER = replace(ONE, rows=256)
QUIET = ("--no-library", "--no-verify", "--quiet", "--arch", "sm_90a", "--arch", "sm_80")


def perceptron(*dims: int | str) -> onnx.ModelProto:
    net = Net({"x": (*dims, 512)})
    return net.model(net.linear(net.node("Relu", net.linear("x", 512, 1024)), 1024, 256))


def planned(
    model: onnx.ModelProto,
    options: Options | None = None,
    timings: Timings = NOTHING,
    archs: Sequence[int] = (90,),
) -> Plan:
    graph = prepare(model, "fp16")
    return plan(
        graph,
        partition(match(graph)[0]),
        archs,
        "all",
        timings,
        ranges_of(graph, options or Options()),
    )


def rows_of(chosen: Plan) -> list[list[int]]:
    """m at each point, opt first, of each node."""
    return [[problem.rows for problem in problems] for problems in chosen.sizes.values()]


# --- tables


def covered(rows: Sequence[KernelConfig]) -> bool:
    return (
        rows[0].min_m == 0
        and rows[-1].max_m == UNBOUNDED
        and all(b.min_m == a.max_m + 1 for a, b in itertools.pairwise(rows))
    )


def test_a_row_serves_from_the_size_before_to_its_own() -> None:
    rows = table(
        [(8, Choice(ONE, 1.0)), (1, Choice(OTHER, 1.0)), (64, Choice(OTHER, 1.0, measured=False))]
    )
    assert [(r.config.min_m, r.config.max_m) for r in rows] == [(0, 1), (2, 8), (9, UNBOUNDED)]
    assert [r.measured for r in rows] == [True, True, False]
    assert [r.config.instance() for r in rows] == [
        OTHER.instance(),
        ONE.instance(),
        OTHER.instance(),
    ]


def test_equal_neighbours_are_one_row_measured_where_all_are() -> None:
    rows = table(
        [
            (8, Choice(ONE, 1.0)),
            (4, Choice(ONE, 1.0, measured=False)),
            (16, Choice(OTHER, 1.0)),
            (32, Choice(OTHER, 2.0)),
        ]
    )
    assert [(r.config.min_m, r.config.max_m, r.measured) for r in rows] == [
        (0, 8, False),
        (9, UNBOUNDED, True),
    ]
    assert table([(8, Choice(ONE, 1.0))])[0].config == ONE
    # another launch, another row
    split = replace(ONE, split_k=2)
    rows = table([(8, Choice(ONE, 1.0)), (16, Choice(split, 1.0))])
    assert [row.config.instance() for row in rows] == [ONE, ONE]
    assert rows[1].config == replace(split, min_m=9)


def test_of_one_size_the_first_choice_counts() -> None:
    assert [row.config for row in table([(8, Choice(ONE, 1.0)), (8, Choice(OTHER, 1.0))])] == [ONE]


@pytest.mark.parametrize("archs", [(90,), (90, 80)])
def test_tables_of_a_plan_cover_every_size_for_each_architecture(archs: tuple[int, ...]) -> None:
    chosen = planned(perceptron("batch", 100), archs=archs)
    for rows in chosen.configs.values():
        for arch in archs:
            own = [row for row in rows if row.arch == arch]
            assert covered(own)
            assert all(
                replace(a, min_m=0, max_m=0) != replace(b, min_m=0, max_m=0)
                for a, b in itertools.pairwise(own)
            )
    assert max(len(rows) for rows in chosen.configs.values()) > len(archs)


def test_each_size_has_the_kernel_that_was_measured_for_it() -> None:
    model = perceptron("batch")
    known: dict[tuple[Problem, int], Choice] = {}
    for problems in planned(model).sizes.values():
        for i, problem in enumerate(problems):
            assert isinstance(problem, GemmProblem)
            known[problem, 90] = Choice(candidates(problem, ARCHS[90])[i], 1.0)
    chosen = planned(model, timings=Timings(known))
    assert set(chosen.sources.values()) == {"measured"}
    for key, problems in chosen.sizes.items():
        for problem in problems:
            (row,) = (c for c in chosen.configs[key] if c.min_m <= problem.rows <= c.max_m)
            assert row.instance() == known[problem, 90].config.instance()


# --- points


def test_without_options_batches_are_powers_of_two_and_eight_decides() -> None:
    chosen = planned(perceptron("batch"))
    assert rows_of(chosen) == [[8, 1, 2, 4, 16, 32, 64]] * 2
    assert [p.rows for p in chosen.problems.values()] == [8, 8]
    assert rows_of(planned(perceptron("n", 10))) == [[80, 10, 20, 40, 160, 320, 640]] * 2
    net = Net({"x": (None, 512)})  # type: ignore[dict-item]
    assert rows_of(planned(net.model(net.linear("x", 512, 256)))) == [[8, 1, 2, 4, 16, 32, 64]]


def shapes_at(*shapes: tuple[int | str, ...], **options: Any) -> list[tuple[int, ...]]:
    """The points of the first of the inputs."""
    net = Net({f"x{i}": shape for i, shape in enumerate(shapes)})
    graph = prepare(net.model(*(net.node("Relu", f"x{i}") for i in range(len(shapes)))))
    given = {name: {"x0": shape} for name, shape in options.items()}
    return [tuple(point.shapes["x0"]) for point in ranges_of(graph, Options(**given)).points]  # type: ignore[arg-type]


def test_without_options_images_have_a_usual_size() -> None:
    net = Net({"x": ("N", 16, 32, "W")})
    pixels = [batch * 16 * 112 for batch in (8, 1, 2, 4, 16, 32, 64)]
    assert rows_of(planned(net.model(net.conv("x", 16, 16, 2, strides=[2, 2]))))[0] == pixels


IMAGES = [(448, 896), (224, 224), (224, 448), (448, 448), (896, 896), (896, 1792), (1792, 1792)]


@pytest.mark.parametrize("shape", [(1, 3, "H", "W"), (1, 3, "?", "?"), (1, 3, -1, -1)])
def test_without_options_open_images_have_several_sizes(shape: tuple[int | str, ...]) -> None:
    """As many pixels as 1, 2, 4, .. 64 images of the usual size."""
    assert shapes_at(shape) == [(1, 3, *image) for image in IMAGES]


def test_larger_batches_are_of_images_of_the_usual_size() -> None:
    expected = [(1, 3, *image) for image in IMAGES] + [(8, 3, 224, 224), (64, 3, 224, 224)]
    assert shapes_at(("N", 3, "H", "W")) == shapes_at((-1, 3, "?", "?")) == expected


def test_open_images_with_their_channels_last() -> None:
    assert shapes_at((1, "?", "?", 3)) == [(1, *image, 3) for image in IMAGES]


def test_open_squares_stay_squares() -> None:
    squares = [448, 224, 896, 1792]
    assert shapes_at((1, 3, "S", "S")) == [(1, 3, size, size) for size in squares]
    found = shapes_at((1, 3, "S", "S"), min_shapes=(1, 3, 32, 32), max_shapes=(1, 3, 64, 64))
    assert found == [(1, 3, 64, 64), (1, 3, 32, 32)]


def test_images_beside_texts_have_the_usual_size() -> None:
    batches = (8, 1, 2, 4, 16, 32, 64)
    assert shapes_at(("N", 3, "H", "W"), ("N", "S")) == [(n, 3, 224, 224) for n in batches]


def test_height_and_width_double_in_turn() -> None:
    """So that the pixels double from point to point."""
    found = shapes_at(
        ("N", 3, "H", "W"),
        min_shapes=(1, 3, 384, 384),
        opt_shapes=(1, 3, 736, 1280),
        max_shapes=(1, 3, 1216, 2000),
    )
    images = [(736, 1280), (384, 384), (384, 768), (768, 768), (768, 1536), (1216, 1536)]
    assert found == [(1, 3, *image) for image in [*images, (1216, 2000)]]
    # only one of them varies
    assert shapes_at(("N", 3, "H", "W"), min_shapes=(1, 3, 48, 80), max_shapes=(4, 3, 48, 320)) == [
        (4, 3, 48, 320),
        (1, 3, 48, 80),
        (2, 3, 48, 160),
    ]


def test_without_options_a_mask_is_as_long_as_its_sequence() -> None:
    graph = prepare(Net({"x": ("N", "S", 16), "mask": ("N", 1, "S", "S")}).model("x"))
    assert {
        shape[-1] for point in ranges_of(graph, Options()).points for shape in point.shapes.values()
    } == {8, 16}


def test_without_options_a_sequence_is_long_enough_for_the_first_window() -> None:
    net = Net({"x": ("N", 8, "T")})
    y = net.node(
        "Conv",
        net.node("Conv", "x", net.normal(8, 8, 10), strides=[5]),
        net.normal(8, 8, 3),
        strides=[2],
    )
    y = net.linear(net.node("Transpose", y, perm=[0, 2, 1]), 8, 64)
    assert rows_of(planned(net.model(y)))[0][0] == 8 * 11  # rows of 64 values
    # nothing to compute, but a kernel
    assert rows_of(planned(net.model(y), Options(opt_shapes={"x": (1, 8, 8)})))[0] == [1]


def test_a_model_of_fixed_sizes_is_planned_as_it_is() -> None:
    model = perceptron(32)
    graph = prepare(model, "fp16")
    assert (
        ranges_of(graph, Options())
        == ranges_of(graph, Options(max_shapes={"x": (32, 512)}))
        == FIXED
    )
    assert [[row.min_m, row.max_m] for rows in planned(model).configs.values() for row in rows] == [
        [0, UNBOUNDED]
    ] * 2


def test_options_give_the_points() -> None:
    def rows(**given: tuple[int, ...]) -> list[int]:
        shapes: dict[str, Any] = {f"{name}_shapes": {"x": (*s, 512)} for name, s in given.items()}
        return rows_of(planned(perceptron("batch"), Options(**shapes)))[0]

    assert rows(min=(3,), opt=(20,), max=(40,)) == [20, 3, 6, 12, 24, 40]
    assert rows(opt=(20,)) == [20]
    assert rows(max=(20,)) == [20]
    assert rows(min=(5,), max=(20,)) == [20, 5, 10]


def test_a_sequence_is_a_symbolic_dimension_like_any_other() -> None:
    options = Options(
        min_shapes={"x": (1, 16, 512)},
        opt_shapes={"x": (4, 128, 512)},
        max_shapes={"x": (4, 256, 512)},
    )
    assert rows_of(planned(perceptron("batch", "sequence"), options))[0] == [512, 16, 64, 256, 1024]


def test_shapes_that_follow_from_symbols_are_known() -> None:
    """Two images a sample: the convolution sees twice the batch."""
    net = Net({"x": ("batch", 2, 3, 16, 16)})
    chosen = planned(
        net.model(net.conv(net.node("Reshape", "x", net.const([-1, 3, 16, 16], "int64")), 3, 16))
    )
    assert rows_of(chosen)[0][:3] == [16 * 256, 2 * 256, 4 * 256]


def test_a_region_is_about_the_opt_point() -> None:
    """It has the key that the same model of this fixed size has, so that a measurement serves
    both."""
    found = []
    opt = {"x": (16, 3, 224, 224)}
    for batch, options in (
        ("batch", Options(min_shapes={"x": (1, 3, 224, 224)}, opt_shapes=opt)),
        (16, Options()),
    ):
        graph = prepare(build("resnet18", batch), "fp16")
        ranges = ranges_of(graph, options)
        chosen = plan(graph, partition(match(graph)[0]), [90], "all", NOTHING, ranges)
        found.append({region.key for region in regions(chosen.assignment, 90, ranges.opt)})
    assert found[0] == found[1]


def test_all_sizes_are_tuned_the_opt_one_counts_most() -> None:
    tasks = tasks_of(planned(perceptron("batch")).workload, ARCHS[90], trials=1)
    assert sorted(
        (task.problem.rows, task.occurrences) for task in tasks if task.problem.columns == 256
    ) == [
        (1, 1),
        (2, 1),
        (4, 1),
        (8, 6),
        (16, 1),
        (32, 1),
        (64, 1),
    ]
    chosen = planned(perceptron(32))
    assert chosen.workload == list(chosen.problems.values())


# --- options


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x:[1,3,224,224]", {"x": (1, 3, 224, 224)}),
        ("x:[1,3],y:[8]", {"x": (1, 3), "y": (8,)}),
        ("a:0:[ 2 , 3 ], b:[]", {"a:0": (2, 3), "b": ()}),
        ("x:1x3x960x960", {"x": (1, 3, 960, 960)}),
        ("a:0:2x3, b:8,c:[1,2]", {"a:0": (2, 3), "b": (8,), "c": (1, 2)}),
    ],
)
def test_shapes_are_written_as_for_polygraphy_and_trtexec(
    text: str, found: dict[str, tuple[int, ...]]
) -> None:
    assert shapes(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "x:1x",
        "x:1x3x",
        "x:0x3",
        "x:1 x3",
        "x:[1x3]",
        "x:1x3,",
        "x:[1,3",
        "x:[1,-3]",
        "x:[0,3]",
        "x:[1,3];y:[1]",
        "x:[1],x:[1]",
        "[1,3]",
        "x:[1,3],",
    ],
)
def test_what_is_no_list_of_shapes_is_one_clear_line(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError):
        shapes(text)
    assert main(["optimize", "in.onnx", "out.onnx", "--opt-shapes", text]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert "--opt-shapes" in line


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("--opt-shapes", "z:[1,5,512]"),
            "--opt-shapes z:[1,5,512]: the model has no such input; its inputs are x, y",
        ),
        (
            ("--max-shapes", "x:[8,512],y:[8,3]"),
            "x:[8,512] does not fit: the model says [batch,sequence,512]",
        ),
        (
            ("--max-shapes", "x:[8,4,256],y:[8,3]"),
            "x:[8,4,256] does not fit: the model says [batch,sequence,512]",
        ),
        (
            ("--max-shapes", "x:[8,4,512]"),
            "--max-shapes: the input y is [batch,?]; give its shape, too",
        ),
        (
            ("--min-shapes", "x:[2,4,512],y:[2,3]", "--opt-shapes", "x:[1,8,512],y:[1,3]"),
            "input x: --min-shapes [2,4,512], --opt-shapes [1,8,512]",
        ),
    ],
)
def test_shapes_that_do_not_fit_the_model_are_one_clear_line(
    flags: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = Net({"x": ("batch", "sequence", 512), "y": ("batch", None)})  # type: ignore[dict-item]
    onnx.save(net.model(net.linear("x", 512, 64), net.node("Relu", "y")), tmp_path / "in.onnx")
    assert (
        main(["optimize", str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx"), *QUIET, *flags])
        == 1
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_wrong_shapes_from_python_are_errors_too() -> None:
    with pytest.raises(InputError, match="min_shapes: sizes must be from 1 to 2147483647"):
        Options(min_shapes={"x": (0, 512)})
    lists = Options(min_shapes={"x": [1, 512]}, max_shapes={"x": [4, 512]})  # type: ignore[dict-item]
    assert rows_of(planned(perceptron("batch"), lists))[0] == [4, 1, 2]


def test_an_input_of_open_rank_needs_the_same_rank_everywhere() -> None:
    model = perceptron("batch")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    graph = prepare(model, "fp16")
    assert ranges_of(graph, Options()) == FIXED
    assert (
        len(
            ranges_of(graph, Options(min_shapes={"x": (1, 512)}, max_shapes={"x": (4, 512)})).points
        )
        == 3
    )
    with pytest.raises(
        InputError, match="input x: give as many dimensions with each of max_shapes, min_shapes"
    ):
        ranges_of(graph, Options(min_shapes={"x": (1, 512)}, max_shapes={"x": (4, 4, 512)}))


def test_what_follows_for_other_inputs_need_not_be_given() -> None:
    net = Net({"x": ("batch", 512), "y": ("batch", 7), "z": (3,)})
    model = net.model(net.linear("x", 512, 64), net.node("Relu", "y"), net.node("Relu", "z"))
    assert rows_of(planned(model, Options(max_shapes={"x": (20, 512)}))) == [[20]]


# --- lock


def test_a_lock_holds_every_size_and_frozen_gives_the_same_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, lock, first, second = (
        tmp_path / name for name in ("in.onnx", "onnxbolt.lock", "first.onnx", "second.onnx")
    )
    onnx.save(perceptron("batch"), source)
    sizes = (
        "--min-shapes",
        "x:[16,512]",
        "--opt-shapes",
        "x:[64,512]",
        "--max-shapes",
        "x:[512,512]",
        "--fuse",
        "all",
    )
    assert main(["optimize", str(source), str(first), "--lock", str(lock), *sizes, *QUIET]) == 0
    assert {problem.rows for problem, _ in Lock.read(lock).choices} == {16, 32, 64, 128, 256, 512}
    before = lock.read_bytes()
    assert (
        main(
            ["optimize", str(source), str(second), "--lock", str(lock), "--frozen", *sizes, *QUIET]
        )
        == 0
    )
    assert second.read_bytes() == first.read_bytes()
    assert main(["optimize", str(source), str(second), "--lock", str(lock), *sizes, *QUIET]) == 0
    assert lock.read_bytes() == before
    wider = (*sizes, "--max-shapes", "x:[1024,512]")
    assert (
        main(
            ["optimize", str(source), str(second), "--lock", str(lock), "--frozen", *wider, *QUIET]
        )
        == 5
    )
    assert "was written with --min-shapes x:[16,512]" in capsys.readouterr().err


def test_the_written_model_carries_the_table(tmp_path: Path) -> None:
    optimize(
        perceptron("batch"),
        tmp_path / "out.onnx",
        archs=("sm_90a",),
        fuse="all",
        verify=False,
        library=False,
    )
    tables = [
        configs_of_node(node)
        for node in onnx.load(tmp_path / "out.onnx").graph.node
        if node.domain == "com.onnxbolt"
    ]
    assert len(tables) == 2
    assert all(map(covered, tables))


@pytest.mark.parametrize(
    ("form", "name"), [(in_branches, "x"), (in_loop, "state"), (in_scan, "slice")]
)
def test_a_body_has_the_points_of_the_graph_around_it(
    form: Callable[[onnx.ModelProto], onnx.ModelProto], name: str
) -> None:
    """A size that a body knows by the tensors around it; a scan's slice lacks an axis of these."""
    net = Net({"x": ("n", 64)})
    options = Options(opt_shapes={"x": (COUNT, 6, 64) if form is in_scan else (6, 64)})
    subject = Subject.of(form(net.model(net.node("Relu", net.linear("x", 64, 32)))), options)
    for _, inner in subject.bodies:
        assert [point.shapes[name] for point in inner.ranges.points] == [[6, 64]]
