"""Each kind of change: where it finds its places, what it makes of the model, and that predictions
say so."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from models.unfriendly import UNFRIENDLY, unfriendly
from onnxbolt.advice import THRESHOLD, explain
from onnxbolt.advice.activation import Activation
from onnxbolt.advice.change import SAME, Change, Obstacle
from onnxbolt.advice.channels import Channels
from onnxbolt.advice.deepening import Deepening
from onnxbolt.advice.draft import Draft
from onnxbolt.advice.explanation import Explanation
from onnxbolt.advice.export import ComputedShapes, TrainingMode
from onnxbolt.advice.heads import Heads
from onnxbolt.advice.inputs import FixedSizes, Initializers
from onnxbolt.advice.kinds import FASTER
from onnxbolt.advice.stem import Stem
from tests.support import Net, feeds_of, ops, run

ADVISED = {  # the keys of the advices for each model that is unfriendly on purpose
    "three_channel_stem": ["stem/x/8"],
    "channels_46": ["channels/8", "channels/16"],
    "softplus_everywhere": ["activation/Softplus/Relu", "activation/Softplus/HardSwish"],
    "heads_of_72": ["heads/72/64"],
    "opset_11_reshapes": ["export/shapes", "sizes/batch"],
}


def found(kind: type[Change], model: onnx.ModelProto) -> list[Change]:
    """The changes of a kind; obstacles fail."""
    changes = list(kind.find(Draft(model)))
    assert all(isinstance(each, Change) for each in changes), changes
    return [each for each in changes if isinstance(each, Change)]


def obstacles(kind: type[Change], model: onnx.ModelProto) -> list[str]:
    return [each.words for each in kind.find(Draft(model)) if isinstance(each, Obstacle)]


def same(
    model: onnx.ModelProto, change: Change, feeds: dict[str, np.ndarray] | None = None
) -> onnx.ModelProto:
    """The changed model, which is valid and computes the same; `feeds` are its own."""
    changed = change.applied(model)
    onnx.checker.check_model(changed, full_check=True)
    own = feeds_of(model)
    for expected, got in zip(run(model, own), run(changed, feeds or own), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)
    assert (change.results, change.needs_retraining) == (SAME, False)
    return changed


def explained(model: onnx.ModelProto, **choices: object) -> Explanation:
    return explain(model, archs="sm_90a", **choices)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", UNFRIENDLY)
def test_unfriendly_models_get_their_advice(name: str) -> None:
    batch = 8 if "heads" in name or "opset" in name else 32
    result = explained(unfriendly(name, batch))
    assert [advice.key for advice in result.advices] == ADVISED[name]
    for advice in result.advices:
        assert advice.gain >= THRESHOLD
        assert advice.after_ms[0] < (1 - THRESHOLD) * advice.before_ms[0]
        assert advice.before_ms == result.ms
        assert advice.needs_retraining == advice.key.startswith(("activation", "heads"))
    assert all(advice.gain < THRESHOLD for advice in result.tried)


@pytest.mark.parametrize("rows", [512, 2048])
def test_where_nothing_helps_there_is_no_advice(rows: int) -> None:
    net = Net({"x": [rows, 256]})
    y = net.node("Relu", net.linear(net.node("Relu", net.linear("x", 256, 512)), 512, 256))
    result = explained(net.model(y))
    assert (result.advices, result.total, result.free) == ((), None, None)


# --- channels and stems ---------------------------------------------------------------------------


def grouped(width: int, groups: int = 1) -> onnx.ModelProto:
    net = Net({"x": [2, 8, 6, 6]})
    y = net.node("Relu", net.conv("x", 8, width, 3, pads=[1, 1, 1, 1]))
    y = net.node("Add", y, net.conv(y, width, width, 3, pads=[1, 1, 1, 1], group=groups))
    return net.model(net.conv(y, width, 16, 1))


def test_channels_grow_to_the_next_multiple_with_all_that_are_tied_to_them() -> None:
    eight, sixteen = found(Channels, grouped(20))
    assert (eight.key, sixteen.key) == ("channels/8", "channels/16")
    assert eight.words == "use 24 channels instead of 20"
    changed = same(grouped(20), eight)
    assert [w.dims[0] for w in changed.graph.initializer if len(w.dims) == 4] == [24, 24, 16]


def test_channels_of_groups_grow_in_each_group() -> None:
    (eight, *_) = found(Channels, grouped(46, groups=2))
    changed = same(grouped(46, groups=2), eight)
    weights = [numpy_helper.to_array(w) for w in changed.graph.initializer if len(w.dims) == 4]
    assert [w.shape[:2] for w in weights] == [(48, 8), (48, 24), (16, 48)]
    assert [bool(weights[0][i].any()) for i in (22, 23, 24, 47)] == [True, False, True, False]


def test_several_parts_of_a_concat_grow_together() -> None:
    net = Net({"x": [2, 8, 6, 6]})
    parts = [net.conv("x", 8, width, 1) for width in (6, 7, 12)]
    deeper = [net.node("Concat", *parts, axis=1), net.node("Concat", parts[1], parts[0], axis=1)]
    model = net.model(net.conv(deeper[0], 25, 16, 1), net.conv(deeper[1], 13, 16, 1))
    eight, _ = found(Channels, model)
    changed = same(model, eight)
    widths = [w.dims[1] for w in changed.graph.initializer if len(w.dims) == 4 and w.dims[1] > 8]
    assert widths == [8 + 8 + 16, 8 + 8]


def test_aligned_channels_need_no_change() -> None:
    assert found(Channels, grouped(16)) == []


def test_channels_of_outputs_stay_and_the_obstacle_says_so() -> None:
    net = Net({"x": [2, 8, 6, 6]})
    (words,) = obstacles(Channels, net.model(net.conv("x", 8, 10, 1)))
    assert words == "channels stay: conv0 is an output of the graph"


def test_channels_under_a_normalization_need_retraining() -> None:
    net = Net({"x": [4, 16]})
    y = net.linear("x", 16, 12)
    y = net.node("LayerNormalization", y, net.normal(12), net.normal(12))
    (eight, *_) = found(Channels, net.model(net.linear(y, 12, 8)))
    assert eight.needs_retraining
    assert "takes statistics over them" in eight.results


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_stem_reads_padded_images(channels_last: bool) -> None:
    shape = [2, 8, 8, 3] if channels_last else [2, 3, 8, 8]
    net = Net({"x": shape})
    x = net.node("Transpose", "x", perm=[0, 3, 1, 2]) if channels_last else "x"
    x = net.node("Sub", x, net.normal(1, 3, 1, 1))
    model = net.model(net.node("Relu", net.conv(x, 3, 8, 3, strides=[2, 2])))
    four, eight = found(Stem, model)
    assert (four.key, eight.key) == ("stem/x/4", "stem/x/8")
    axis = 3 if channels_last else 1
    pads = [(0, 5 if i == axis else 0) for i in range(4)]
    feeds = {"x": np.pad(feeds_of(model)["x"], pads)}
    changed = same(model, eight, feeds)
    assert changed.graph.input[0].type.tensor_type.shape.dim[axis].dim_value == 8


def test_a_layer_behind_another_is_no_stem() -> None:
    net = Net({"x": [2, 8, 8, 8]})
    assert found(Stem, net.model(net.conv(net.conv("x", 8, 3, 1), 3, 8, 1))) == []


# --- activations and deepening --------------------------------------------------------------------


def activated(op: str, opset: int = 18) -> onnx.ModelProto:
    net = Net({"x": [2, 8, 6, 6]}, opset=opset)
    x = net.conv("x", 8, 8, 3)
    if op == "Mish":
        x = net.node("Mul", x, net.node("Tanh", net.node("Softplus", x)))
    elif op == "Silu":
        x = net.node("Mul", x, net.node("Sigmoid", x))
    else:
        x = net.node(op, x)
    return net.model(net.conv(x, 8, 8, 1))


@pytest.mark.parametrize("op", ["Softplus", "Mish", "Silu", "Elu"])
def test_costly_activations_become_cheaper_ones(op: str) -> None:
    hard, relu = found(Activation, activated(op))
    assert (hard.key, relu.key) == (f"activation/{op}/HardSwish", f"activation/{op}/Relu")
    assert hard.needs_retraining
    model = hard.applied(activated(op))
    onnx.checker.check_model(model, full_check=True)
    assert ops(model) == ["Conv", "HardSwish", "Conv"]
    assert ops(relu.applied(activated(op))) == ["Conv", "Relu", "Conv"]


def test_hard_swish_is_written_out_below_opset_14() -> None:
    hard, _ = found(Activation, activated("Softplus", opset=13))
    assert ops(hard.applied(activated("Softplus", opset=13))) == [
        "Conv",
        "HardSigmoid",
        "Mul",
        "Conv",
    ]


@pytest.mark.parametrize("op", ["Relu", "HardSwish", "Sigmoid", "Tanh"])
def test_cheap_activations_and_gates_stay(op: str) -> None:
    assert found(Activation, activated(op)) == []


@pytest.mark.parametrize("op", ["Relu", "Silu", "HardSwish"])
def test_deepening_adds_a_convolution_and_the_same_activation(op: str) -> None:
    (change,) = found(Deepening, activated(op))
    assert change.needs_retraining
    model = change.applied(activated(op))
    onnx.checker.check_model(model, full_check=True)
    before = ops(activated(op))
    activation = before[1:-1]
    assert ops(model) == ["Conv", *activation, "Conv", *activation, "Conv"]
    assert model.SerializeToString() == change.applied(activated(op)).SerializeToString()  # seeded
    assert all(np.isfinite(y).all() for y in run(model, feeds_of(model)))


def test_only_windows_with_an_activation_are_deepened() -> None:
    net = Net({"x": [2, 8, 6, 6]})
    y = net.node("Relu", net.conv("x", 8, 8, 1))  # a 1x1 convolution
    y = net.node("Relu", net.conv(y, 8, 8, 3, group=8))  # a depthwise one
    y = net.node("Sigmoid", net.conv(y, 8, 8, 3))  # a gate
    assert found(Deepening, net.model(net.conv(y, 8, 8, 3))) == []  # and one that ends the graph


# --- heads ----------------------------------------------------------------------------------------


def attention(size: int, shapes: str = "static") -> onnx.ModelProto:
    """Two heads; targets of Reshapes are constant, or computed where one size is written as -1."""
    width = 2 * size
    net = Net({"x": [2 if shapes == "static" else "n", 5, 16]})
    heads = []
    for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        y = net.linear("x", 16, width)
        if shapes == "static":
            target = net.const([2, 5, 2, size], np.int64)
        else:
            written = net.const([-1, 5, 2, size], np.int64)
            open_ones = net.node("Equal", written, net.const([-1], np.int64))
            one = net.const([1], np.int64)
            rows = net.node("Gather", net.node("Shape", y), net.const([0], np.int64))
            real = net.node("Concat", rows, one, one, one, axis=0)
            target = net.node("Where", open_ones, real, written)
        heads.append(net.node("Transpose", net.node("Reshape", y, target), perm=perm))
    scores = net.node("Mul", net.node("MatMul", *heads[:2]), net.const(size**-0.5))
    y = net.node("MatMul", net.node("Softmax", scores, axis=-1), heads[2])
    y = net.node(
        "Reshape", net.node("Transpose", y, perm=[0, 2, 1, 3]), net.const([0, 5, width], np.int64)
    )
    return net.model(net.linear(y, width, 16))


def test_heads_shrink_with_retraining_or_grow_without() -> None:
    smaller, larger = found(Heads, attention(72))
    assert [smaller.key, larger.key] == ["heads/72/64", "heads/72/80"]
    assert smaller.needs_retraining
    model = smaller.applied(attention(72))
    onnx.checker.check_model(model, full_check=True)
    assert [w.dims[1] for w in model.graph.initializer if len(w.dims) == 2] == [128, 128, 128, 16]
    same(attention(72), larger)


@pytest.mark.parametrize("size", [64, 80])
def test_aligned_heads_stay(size: int) -> None:
    assert found(Heads, attention(size)) == []


# --- exports and inputs ---------------------------------------------------------------------------


def test_computed_targets_become_constant() -> None:
    model = attention(8, shapes="computed")
    (change,) = found(ComputedShapes, model)
    changed = same(model, change)
    assert "Shape" not in ops(changed)
    targets = [
        numpy_helper.to_array(t).tolist()
        for t in changed.graph.initializer
        if t.name.endswith("_shape")
    ]
    assert targets == [[0, 5, 2, 8]] * 3


def test_a_target_with_two_open_sizes_stays() -> None:
    net = Net({"x": ["n", "m"]})
    sizes = net.node("Shape", net.node("Transpose", "x"))
    assert found(ComputedShapes, net.model(net.node("Reshape", "x", sizes))) == []


def test_training_mode_ends() -> None:
    net = Net({"x": [2, 8, 6, 6]})
    y = net.batchnorm(net.conv("x", 8, 8, 3), 8)
    net.nodes[-1].attribute.append(onnx.helper.make_attribute("training_mode", 1))
    net.nodes[-1].output.extend(["mean", "variance"])
    y = net.node("Dropout", y, net.const(0.5), net.const(True, np.bool_))
    model = net.model(net.node("Relu", y))
    (change,) = found(TrainingMode, model)
    assert (change.results, change.needs_retraining) == ("those of inference", False)
    changed = change.applied(model)
    onnx.checker.check_model(changed, full_check=True)
    assert ops(changed) == ["Conv", "BatchNormalization", "Relu"]
    assert explained(model).advices[0].key == "export/training"


def test_initializers_that_are_inputs_become_constants() -> None:
    net = Net({"x": [256, 512]})
    model = net.model(net.node("Relu", net.linear("x", 512, 512)))
    weight = model.graph.initializer[0]
    model.graph.input.append(
        onnx.helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims)
    )
    (change,) = found(Initializers, model)
    assert change.nodes == ("matmul0",)
    assert [value.name for value in change.applied(model).graph.input] == ["x"]
    result = explained(model)
    assert [advice.key for advice in result.advices] == ["initializers"]
    assert "freeze_initializers=True" in result.advices[0].words
    assert "matmul0" in {finding.node for finding in result.findings if finding.advices}


def test_a_size_is_fixed_at_the_point_that_decides() -> None:
    net = Net({"x": ["n", 16]})
    model = net.model(net.linear("x", 16, 16))
    (change,) = FixedSizes.find(Draft(model, {"x": (24, 16)}))
    assert isinstance(change, FixedSizes)
    assert (change.key, change.sizes) == ("sizes/n", (("n", 24),))
    shape = change.applied(model).graph.input[0].type.tensor_type.shape
    assert [dim.dim_value for dim in shape.dim] == [24, 16]


def test_several_sizes_are_fixed_alone_and_together() -> None:
    net = Net({"x": ["n", 8, "h", "w"]})
    draft = Draft(net.model(net.node("Relu", "x")), {"x": (2, 8, 64, 96)})
    keys = [each.key for each in FixedSizes.find(draft) if isinstance(each, Change)]
    assert keys == ["sizes/n", "sizes/h", "sizes/w", "sizes/n+h+w"]


def test_all_kinds_have_names_of_their_own() -> None:
    assert {kind.kind for kind in FASTER} == {
        *("activation", "channels", "export", "heads", "initializers", "sizes", "stem")
    }
