"""Models that can be used as a source, and whether a model or the package is blamed when a stage
fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import ModelProto, helper, parser

from onnxbolt.errors import BuildError, InputError
from onnxbolt.graph.source import opened
from onnxbolt.pipeline import optimize
from tests.support import Net


@pytest.fixture
def model() -> ModelProto:
    net = Net({"x": (2, 8, 6, 6)})
    return net.model(net.node("Relu", net.conv("x", 8, 8, 3)))


def wrong_size(model: ModelProto) -> None:
    model.graph.initializer[0].dims[0] = 5


def too_many_inputs(model: ModelProto) -> None:
    model.graph.node[0].input.extend(["x"] * 5)


def too_few_inputs(model: ModelProto) -> None:
    del model.graph.node[0].input[1:]


def strides_of_one_axis(model: ModelProto) -> None:
    model.graph.node[0].attribute.append(helper.make_attribute("strides", [2]))


@pytest.mark.parametrize(
    "damage", [wrong_size, too_many_inputs, too_few_inputs, strides_of_one_axis]
)
def test_a_damaged_model_is_named_as_the_cause(
    damage: Callable[[ModelProto], None], model: ModelProto
) -> None:
    damage(model)
    with pytest.raises(
        InputError, match=r"the model is not valid ONNX: .*; export it again"
    ) as caught:
        optimize(model, library=False, verify=False)
    assert "\n" not in str(caught.value)


def test_a_failure_on_a_valid_model_is_a_bug_and_stays_one(model: ModelProto) -> None:
    with pytest.raises(ZeroDivisionError), opened(model):
        raise ZeroDivisionError


def test_what_runs_is_not_damaged_though_the_checker_refuses_it(model: ModelProto) -> None:
    model.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(model)
    with pytest.raises(ZeroDivisionError), opened(model):
        raise ZeroDivisionError


def test_errors_on_purpose_are_handed_on(model: ModelProto) -> None:
    wrong_size(model)
    with pytest.raises(BuildError), opened(model):
        raise BuildError("the linker failed")


def test_an_optimized_model_is_no_source(model: ModelProto, tmp_path: Path) -> None:
    optimize(model, tmp_path / "out.onnx", fuse="all", library=False)
    with pytest.raises(InputError, match="optimized by onnxbolt already"):
        optimize(tmp_path / "out.onnx", library=False)


def test_data_that_a_model_in_memory_leaves_in_a_file(model: ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "in.onnx"
    onnx.save(model, path, save_as_external_data=True, size_threshold=0)
    with pytest.raises(InputError, match="pass the model's path"):
        optimize(onnx.load(path, load_external_data=False), library=False)
    assert optimize(path, fuse="all", library=False).passed


def with_open_batch(model: ModelProto) -> ModelProto:
    """As older exporters write it."""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = -1
    return model


@pytest.mark.parametrize("in_a_file", [False, True])
def test_a_size_below_zero_is_open(in_a_file: bool, model: ModelProto, tmp_path: Path) -> None:
    source = with_open_batch(model)
    before, path = source.SerializeToString(), tmp_path / "in.onnx"
    onnx.save(source, path)
    given = path if in_a_file else source
    assert optimize(given, tmp_path / "out.onnx", fuse="all", library=False).passed
    assert optimize(given, library=False, opt_shapes={"x": (3, 8, 6, 6)}).passed
    assert source.SerializeToString() == before  # the caller's model is as it was
    assert (
        not onnx.load(tmp_path / "out.onnx")
        .graph.input[0]
        .type.tensor_type.shape.dim[0]
        .HasField("dim_value")
    )


def test_damaged_data_come_before_what_runs_all_the_same(model: ModelProto) -> None:
    weight = model.graph.initializer[0]
    weight.raw_data = b"abc"
    model.graph.output[0].type.tensor_type.ClearField("shape")  # the checker's first complaint
    with pytest.raises(
        InputError, match=rf"'{weight.name}' of type FLOAT and shape \[8, 8, 3, 3\] has 3 bytes"
    ):
        optimize(model, library=False, verify=False)


def unknown_type(model: ModelProto) -> None:
    model.graph.initializer[0].data_type = 999


def too_few_floats(model: ModelProto) -> None:
    model.graph.initializer[0].ClearField("raw_data")
    model.graph.initializer[0].float_data.extend([1.0] * 5)


@pytest.mark.parametrize(
    ("damage", "words"),
    [(unknown_type, "of type 999 .* has 2304 bytes"), (too_few_floats, "has other data")],
)
def test_data_that_no_array_can_be_made_of(
    damage: Callable[[ModelProto], None], words: str, model: ModelProto
) -> None:
    damage(model)
    with pytest.raises(InputError, match=words), opened(model):
        raise ZeroDivisionError


def test_a_function_that_calls_itself() -> None:
    again = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "net": 1]>
        g (float[2] x) => (float[2] y) { y = net.again(x) }
        <domain: "net", opset_import: ["": 17, "net": 1]> again (x) => (y) { y = net.again(x) }"""
    )
    with pytest.raises(
        InputError, match=r"functions cannot be inlined: Cycle detected .*net::again"
    ):
        optimize(again, library=False)
