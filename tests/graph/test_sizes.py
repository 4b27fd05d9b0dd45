from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from onnxbolt import optimize
from onnxbolt.errors import InputError
from onnxbolt.graph.importer import load_model
from onnxbolt.graph.sizes import contradicted, size_of, without_names, without_unknown
from onnxbolt.options import Options, Shapes
from onnxbolt.report import Report
from tests.support import Net

NAMELESS = ("", "?", "*", "-1", "None", " ? ")
NAMES = ("batch", "N", "s0", "2*s0", "s0 + 1", "images.height", "DynamicDimension.0", "none", "0")
OCR: tuple[int | str, ...] = (-1, 3, "?", "?")


def dimension(value: int | str) -> onnx.TensorShapeProto.Dimension:
    if isinstance(value, int):
        return onnx.TensorShapeProto.Dimension(dim_value=value)
    return onnx.TensorShapeProto.Dimension(dim_param=value)


def declared(model: ModelProto, name: str = "x") -> list[int | str | None]:
    (value,) = (v for v in (*model.graph.input, *model.graph.output) if v.name == name)
    return [
        d.dim_param if d.HasField("dim_param") else d.dim_value if d.HasField("dim_value") else None
        for d in value.type.tensor_type.shape.dim
    ]


def detector(shape: Sequence[int | str] = OCR) -> ModelProto:
    """A backbone with a residual, and a neck that adds the small map to the large one."""
    net = Net({"x": shape})
    stem = net.node("Relu", net.conv("x", 3, 16, 3, strides=[2, 2], pads=[1] * 4))
    same = net.node("Relu", net.node("Add", net.conv(stem, 16, 16, 3, pads=[1] * 4), stem))
    small = net.node("Relu", net.conv(same, 16, 32, 3, strides=[2, 2], pads=[1] * 4))
    up = net.node(
        "Resize",
        net.conv(small, 32, 16),
        "",
        net.const([1, 1, 2, 2]),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    return net.model(net.node("Sigmoid", net.conv(net.node("Add", up, same), 16, 1)))


def two_inputs(first: str = "batch", second: str = "batch") -> ModelProto:
    net = Net({"x": (first, 64), "y": (second, 64)})
    return net.model(
        net.node("Relu", net.linear("x", 64, 64)), net.node("Relu", net.linear("y", 64, 32))
    )


def quick(model: ModelProto, out: Path | None = None, **shapes: Shapes) -> Report:
    options = Options(fuse="all", library=False, archs=("sm_90a",))
    return optimize(model, out, options=dataclasses.replace(options, **shapes))  # type: ignore[arg-type]


# --- unknown sizes


@pytest.mark.parametrize("text", NAMELESS)
def test_what_names_nothing_is_unknown(text: str) -> None:
    assert size_of(dimension(text)) is None


@pytest.mark.parametrize("text", NAMES)
def test_any_other_text_is_a_name(text: str) -> None:
    assert size_of(dimension(text)) == text


@pytest.mark.parametrize(
    ("text", "name"), [("((s27**2)//s27)", "s27"), ("((s27**2)//s2)", "((s27**2)//s2)")]
)
def test_a_square_divided_by_its_root_is_the_root(text: str, name: str) -> None:
    assert size_of(dimension(text)) == name


def test_numbers_are_sizes_unless_negative() -> None:
    assert [size_of(dimension(size)) for size in (0, 7, -1, -2)] == [0, 7, None, None]
    assert size_of(onnx.TensorShapeProto.Dimension()) is None


def test_unknown_sizes_are_left_out_everywhere(tmp_path: Path) -> None:
    model = detector()
    inner = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["inner"])],
        "inner",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, ["N", "*", -1, 4])],
    )
    model.graph.node.append(
        helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=inner)
    )
    model.graph.initializer.append(helper.make_tensor("c", TensorProto.BOOL, [], [True]))
    model.graph.value_info.append(
        helper.make_tensor_value_info("conv0", TensorProto.FLOAT, ["?", 16, "h", "w"])
    )
    before = model.SerializeToString()
    found = without_unknown(model)
    assert model.SerializeToString() == before
    assert declared(found) == [None, 3, None, None]
    shape = found.graph.value_info[-1].type.tensor_type.shape
    assert [size_of(d) for d in shape.dim] == [None, 16, "h", "w"]
    branch = found.graph.node[-1].attribute[0].g.output[0].type.tensor_type.shape
    assert [d.WhichOneof("value") for d in branch.dim] == ["dim_param", None, None, "dim_value"]
    assert without_unknown(found) is found
    onnx.save(model, tmp_path / "in.onnx")
    assert declared(load_model(tmp_path / "in.onnx")) == [None, 3, None, None]


def test_unknown_sizes_of_one_spelling_are_several(tmp_path: Path) -> None:
    report = quick(
        detector(),
        tmp_path / "out.onnx",
        min_shapes={"x": (1, 3, 64, 96)},
        opt_shapes={"x": (1, 3, 736, 1280)},
        max_shapes={"x": (2, 3, 736, 1280)},
    )
    assert report.passed
    assert declared(onnx.load(tmp_path / "out.onnx")) == [None, 3, None, None]
    assert not [line for line in report.changes if "not shared" in line]


def test_a_spelling_of_unknown_fuses_as_much_as_names() -> None:
    unknown, named = quick(detector()), quick(detector(("batch", 3, "height", "width")))
    assert unknown.passed
    assert len(unknown.fused) == len(named.fused) == 5


# --- names that shapes contradict


def test_contradicted_names_have_their_sizes() -> None:
    inputs: dict[str, list[int | str | None] | None] = {
        "x": ["N", 3, "s", "s"],
        "y": ["N", "t"],
        "z": None,
    }
    assert contradicted(inputs, [{"x": (1, 3, 8, 8), "y": (1, 5), "z": (9,)}]) == {}
    # each option has its own sizes
    assert contradicted(inputs, [{"x": (1, 3, 8, 8)}, {"x": (2, 3, 9, 9)}]) == {}
    assert contradicted(inputs, [{"x": (1, 3, 8, 9), "y": (2, 5)}]) == {
        "N": "1 in x, 2 in y",
        "s": "8 in x, 9 in x",
    }
    # ranks that do not fit are an error elsewhere
    assert contradicted(inputs, [{"x": (1, 3, 8), "w": (1,)}]) == {}


def test_names_are_left_out_with_their_expressions() -> None:
    model = two_inputs("s0", "2*s0")
    model.graph.value_info.append(
        helper.make_tensor_value_info("t", TensorProto.FLOAT, ["s0//4 + 1", "s01", "a.s0", "s0.b"])
    )
    found = without_names(model, {"s0"})
    assert declared(found) == declared(found, "y") == [None, 64]
    shape = found.graph.value_info[-1].type.tensor_type.shape
    assert [size_of(d) for d in shape.dim] == [None, "s01", "a.s0", "s0.b"]
    assert declared(without_names(model, {"2*s0"})) == ["s0", 64]
    assert declared(without_names(model, {"2*s0"}), "y") == [None, 64]
    assert without_names(model, ()) is model


@pytest.mark.parametrize("option", ["min_shapes", "opt_shapes", "max_shapes"])
def test_a_name_that_shapes_contradict_is_not_shared(option: str, tmp_path: Path) -> None:
    shapes = {"x": (8, 64), "y": (4, 64)}
    report = quick(two_inputs(), tmp_path / "out.onnx", **{option: shapes})
    assert report.passed
    (note,) = (line for line in report.changes if line.startswith("sizes: "))
    assert note == (
        "sizes: the name batch is not shared, because the given shapes contradict it"
        " (8 in x, 4 in y)"
    )
    written = onnx.load(tmp_path / "out.onnx")
    assert [declared(written, name) for name in "xy"] == [[None, 64]] * 2
    assert not [line for line in quick(two_inputs()).changes if line.startswith("sizes: ")]


def test_one_name_for_height_and_width() -> None:
    """As exporters write it that number all unknown sizes from 0."""
    report = quick(
        detector(("n", 3, "DynamicDimension.0", "DynamicDimension.0")),
        min_shapes={"x": (1, 3, 64, 64)},
        max_shapes={"x": (1, 3, 96, 160)},
    )
    assert report.passed
    assert any("64 in x, 96 in x" in line or "96 in x, 160 in x" in line for line in report.changes)


def test_where_a_name_is_not_shared_all_its_inputs_need_shapes() -> None:
    with pytest.raises(InputError, match=r"the input y is \[\?,64\]; give its shape, too"):
        quick(
            two_inputs(),
            min_shapes={"x": (8, 64)},
            max_shapes={"x": (8, 64), "y": (9, 64)},
        )
