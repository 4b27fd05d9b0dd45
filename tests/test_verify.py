"""Verification passes what is right, fails what is not, and says which tensor; inputs that a
model can run on."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import ArrayLike
from onnx import ModelProto, NodeProto, helper, numpy_helper

from onnxbolt.errors import InputError
from onnxbolt.graph.importer import load_model
from onnxbolt.pipeline import optimize
from onnxbolt.precision import rounded_original
from onnxbolt.verify import Row, VerifyResult, verify
from onnxbolt.verify.feeds import Bounds, random_feeds, read_feeds, working_feeds
from onnxbolt.verify.result import NOT_JUDGED
from onnxbolt.verify.session import CPU, Runner
from onnxbolt.verify.widen import widened

Arrays = dict[str, np.ndarray]
Optimized = Callable[..., ModelProto]


def model_of(
    signature: str, body: str, weights: Mapping[str, ArrayLike] | None = None, opset: int = 17
) -> ModelProto:
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> g {signature} {{ {body} }}'
    )
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(v), name) for name, v in (weights or {}).items()
    )
    return model


def drawn(seed: int, *shape: int) -> np.ndarray:
    return (
        np.random.default_rng(seed).standard_normal(shape) / math.sqrt(math.prod(shape[1:]))
    ).astype(np.float32)


@pytest.fixture(scope="module")
def convolutions() -> ModelProto:
    """Odd channels, a residual, a pooling and a product: every layout and channel map that fused
    nodes have."""
    body = """a = Conv<pads=[1,1,1,1]>(x, w0, b0) h = Relu(a)
              c = Conv<pads=[1,1,1,1]>(h, w1, b1) r = Add(c, h) s = Relu(r)
              p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(s)
              g = GlobalAveragePool(p) f = Flatten(g) y = Gemm(f, w2, b2)"""
    weights: dict[str, Any] = {
        "w0": drawn(0, 13, 3, 3, 3),
        "b0": drawn(1, 13),
        "w1": drawn(2, 13, 13, 3, 3),
        "b1": drawn(3, 13),
        "w2": drawn(4, 13, 5),
        "b2": drawn(5, 5),
    }
    return model_of("(float[2,3,12,12] x) => (float[2,5] y)", body, weights)


@pytest.fixture(scope="module")
def optimized(convolutions: ModelProto, tmp_path_factory: pytest.TempPathFactory) -> Optimized:
    """optimized(precision): the fused model, a fresh copy for each call."""
    directory, made = tmp_path_factory.mktemp("optimized"), set[Path]()

    def make(precision: str = "fp16") -> ModelProto:
        path = directory / f"{precision}.onnx"
        if path not in made:
            optimize(
                convolutions, path, precision=precision, fuse="all", library=False, verify=False
            )
            made.add(path)
        return load_model(path)

    return make


def fused(model: ModelProto, start: str) -> NodeProto:
    return next(node for node in model.graph.node if node.op_type.startswith(start))


def shift_bias(model: ModelProto, node: NodeProto, amount: float) -> None:
    tensor = next(t for t in model.graph.initializer if t.name == node.input[2])
    values = numpy_helper.to_array(tensor).copy()
    values[0] += amount
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


@pytest.mark.parametrize("precision", ["fp16", "bf16", "keep"])
def test_right_models_pass_with_a_row_for_each_fused_node(
    precision: str, convolutions: ModelProto, optimized: Optimized
) -> None:
    model = optimized(precision)
    result = verify(convolutions, model, providers=[CPU])
    assert result.passed, result.text()
    count = sum(node.domain == "com.onnxbolt" for node in model.graph.node)
    assert [row.kind for row in result.at("model")] == ["output"]
    assert [row.kind for row in result.at("node")] == ["fused node"] * count
    assert {row.kind for row in result.at("segment")} == {"segment"}
    assert result.at("model") == result.rows[:1]
    assert count == 6
    assert any("bfloat16" in note for note in result.notes) == (precision == "bf16")


def test_a_bfloat16_original_passes() -> None:
    weights: dict[str, Any] = {"w": drawn(0, 4, 4).astype(ml_dtypes.bfloat16)}
    model = model_of(
        "(bfloat16[2,4] x) => (bfloat16[2,4] y)", "a = MatMul(x, w) y = Relu(a)", weights
    )
    result = verify(model, model, providers=[CPU])
    assert result.passed
    assert "compared as float32" in result.notes[0]


_GELUS = {
    "QuickGelu": "s = Mul(a, c1) g = Sigmoid(s) y = Mul(a, g)",
    "GeluTanh": "p = Pow(a, three) q = Mul(p, c2) r = Add(a, q) s = Mul(r, c3) t = Tanh(s)"
    " u = Add(t, one) g = Mul(a, half) y = Mul(g, u)",
}


@pytest.mark.parametrize("shift", [0.0, 0.25])
@pytest.mark.parametrize("gelu", _GELUS)
def test_formulas_of_a_bfloat16_original_have_rounded_constants(
    gelu: str, shift: float, tmp_path: Path
) -> None:
    """A kernel has a formula's numbers, and the original their roundings: sqrt(2 / pi) by 1e-3."""
    numbers = {"c1": 1.702, "c2": 0.044715, "c3": (2 / math.pi) ** 0.5}
    weights = {"w": drawn(1, 16, 32).T, "b": drawn(2, 16)} | numbers
    original = model_of(
        "(bfloat16[4,32] x) => (bfloat16[4,16] y)",
        f"h = MatMul(x, w) a = Add(h, b) {_GELUS[gelu]}",
        {
            name: np.asarray(value, ml_dtypes.bfloat16)
            for name, value in {**weights, "three": 3, "one": 1, "half": 0.5}.items()
        },
    )
    out = tmp_path / "out.onnx"
    optimize(original, out, precision="keep", fuse="all", library=False, verify=False)
    model = load_model(out)
    shift_bias(model, fused(model, f"FusedGemm_Bias_{gelu}_bf16"), shift)
    assert verify(original, model, providers=[CPU]).passed is (not shift)


@pytest.mark.parametrize("start", ["FusedConv_Bias_Relu", "FusedConv_Bias_Add_Relu", "FusedGemm"])
def test_a_shifted_bias_fails_at_its_node(
    start: str, convolutions: ModelProto, optimized: Optimized
) -> None:
    model = optimized()
    node = fused(model, start)
    shift_bias(model, node, 1.0)
    result = verify(convolutions, model, providers=[CPU])
    assert not result.passed
    assert node.name in {row.node for row in result.failures}
    assert result.text().splitlines()[-1].startswith("FAILED")


def test_exchanged_channels_fail(convolutions: ModelProto, optimized: Optimized) -> None:
    model = optimized()
    node = fused(model, "FusedConv_Bias_Relu")
    channels = next(attribute for attribute in node.attribute if attribute.name == "channel_map")
    channels.ints[0], channels.ints[1] = channels.ints[1], channels.ints[0]
    assert node.name in [row.node for row in verify(convolutions, model, providers=[CPU]).failures]


def test_a_node_that_stands_for_no_tensor_fails(
    convolutions: ModelProto, optimized: Optimized
) -> None:
    model = optimized()
    next(a for a in fused(model, "FusedGemm").attribute if a.name == "tensor").s = b"nothing"
    (row,) = verify(convolutions, model, providers=[CPU]).failures
    assert (row.name, row.reason) == ("nothing", "the original model has no such tensor")


def test_a_model_that_does_not_run_fails(convolutions: ModelProto, optimized: Optimized) -> None:
    model = optimized()
    del model.functions[:]
    result = verify(convolutions, model, providers=[CPU])
    assert all("does not run" in row.reason for row in result.failures)
    assert len(result.failures) == len(result.rows)


def test_chunks_do_not_change_the_answer(convolutions: ModelProto, optimized: Optimized) -> None:
    small, large = (
        verify(convolutions, optimized("keep"), providers=[CPU], memory_limit=limit)
        for limit in (1, 1 << 30)
    )
    assert [(row.name, row.passed) for row in small.rows] == [
        (row.name, row.passed) for row in large.rows
    ]


def test_elementwise_bounds_are_a_further_condition(
    convolutions: ModelProto, optimized: Optimized
) -> None:
    assert verify(convolutions, optimized(), atol=0.1, providers=[CPU]).passed
    result = verify(convolutions, optimized(), atol=1e-9, rtol=1e-9, providers=[CPU])
    assert "an element differs" in result.failures[0].reason


def test_rounding_that_the_original_shares_is_no_fault() -> None:
    """Weights around 50 that cancel: fp16 keeps little of their difference, whoever computes it."""
    weights: dict[str, Any] = {"w": 50 + drawn(0, 64, 8), "n": np.full((64, 8), -50, np.float32)}
    model = model_of(
        "(float[4,64] x) => (float[4,8] y)",
        "a = MatMul(x, w) b = MatMul(x, n) y = Add(a, b)",
        weights,
    )
    rounded = rounded_original(model, "fp16")
    rounded.metadata_props.add(key="onnxbolt.precision", value="fp16")
    result = verify(model, rounded, providers=[CPU])
    assert result.passed, result.text()
    (row,) = result.at("model")
    assert row.error > 1e-2
    assert row.passed
    assert row.limit == pytest.approx(1.5 * row.error)


def test_integers_must_be_equal() -> None:
    model, other = (
        model_of(
            "(float[2,4] x) => (int64[2] y)",
            "h = Add(x, b) y = ArgMax<axis=1, keepdims=0>(h)",
            {"b": np.array(b, np.float32)},
        )
        for b in ([9, 0, 0, 0], [0, 9, 0, 0])
    )
    assert verify(model, model, providers=[CPU]).passed
    (row,) = verify(model, other, providers=[CPU]).at("model")
    assert row.reason == "share of unequal values 1.00e+00 is above the limit 0.00e+00"


def test_other_indices_never_pass_but_rounding_that_chooses_them_leaves_no_verdict() -> None:
    weights: dict[str, Any] = {
        "w": (1 + drawn(0, 16, 32) / 1000).astype(np.float32),
        "b": drawn(1, 32) / 1000,
    }
    model = model_of(
        "(float[64,16] x) => (int64[64] y)",
        "a = MatMul(x, w) h = Add(a, b) y = ArgMax<axis=1, keepdims=0>(h)",
        weights,
    )
    rounded = rounded_original(model, "fp16")
    rounded.metadata_props.add(key="onnxbolt.precision", value="fp16")
    result = verify(model, rounded, providers=[CPU])
    (row,) = result.unjudged
    assert (row.passed, row.limit, result.verdict.startswith(NOT_JUDGED)) == (False, 0, True)
    assert "rounding alone changes" in row.unjudged

    rounded.graph.initializer.append(numpy_helper.from_array(np.asarray(1, np.int64), "one"))
    (argmax,) = (node for node in rounded.graph.node if node.op_type == "ArgMax")
    argmax.output[0] = "index"
    rounded.graph.node.append(helper.make_node("Add", ["index", "one"], ["y"]))
    (row,) = verify(model, rounded, providers=[CPU]).failures
    assert row.error > 0.9


@pytest.mark.parametrize(
    ("distance", "faulty", "judged"), [(8.0, False, True), (8.0, True, True), (1e-3, True, False)]
)
def test_wrong_indices_fail_in_their_segment_unless_rounding_chooses_them(
    distance: float, faulty: bool, judged: bool
) -> None:
    """Sums that lie about `distance` apart. Fault: the least ones are chosen."""
    constants: dict[str, Any] = {
        "small": np.float32(1e-4),
        "b": (100 + distance * np.arange(8)).astype(np.float32),
        "k": np.array([3], np.int64),
    }
    header, begin = "(float[64,8] x) => (int64[64,3] i)", "a = Mul(x, small) h = Add(a, b)"
    original = model_of(header, f"{begin} y, i = TopK(h, k)", constants)
    end = f"r = Cast<to=10>(h) y, i = TopK<largest={int(not faulty)}>(r, k)"
    rounded = model_of(header, f"{begin} {end}", constants)
    rounded.metadata_props.add(key="onnxbolt.precision", value="fp16")
    rows = {row.name: row for row in verify(original, rounded, providers=[CPU]).at("segment")}
    assert ("i" in rows) == judged
    assert not judged or rows["i"].failed == faulty


def test_a_shape_that_rounding_changes_is_not_judged() -> None:
    """Beside 1, fp16 does not hold 1e-4: nothing passes the threshold any more."""
    body = "a = Mul(x, zero) h = Add(a, b) g = Greater(h, one) y = NonZero(g)"
    weights: dict[str, Any] = {
        "zero": np.float32(0),
        "b": np.float32(1 + np.arange(8) / 1e4),
        "one": np.float32(1),
    }
    model = model_of("(float[1,8] x) => (int64[2,N] y)", body, weights)
    rounded = rounded_original(model, "fp16")
    rounded.metadata_props.add(key="onnxbolt.precision", value="fp16")
    (row,) = verify(model, rounded, providers=[CPU]).at("model")
    assert row.unjudged == "rounding alone changes the original's shape"
    wrong = model_of("(float[1,8] x) => (int64[2,N] y)", "y = NonZero(x)", {})
    row = verify(model, wrong, providers=[CPU]).at("model")[0]
    assert row.reason == "shape (2, 8) instead of (2, 7)"


def test_where_rounding_changes_the_shape_there_is_no_yardstick() -> None:
    """Beside 1, fp16 does not hold 1e-4: nothing passes the threshold any more."""
    body = "a = Mul(x, zero) h = Add(a, b) g = Greater(h, one) n = NonZero(g) y = Add(n, k)"
    weights: dict[str, Any] = {
        "zero": np.float32(0),
        "b": np.float32(1 + np.arange(8) / 1e4),
        "one": np.float32(1),
    }
    model, other = (
        model_of("(float[1,8] x) => (int64[2,N] y)", body, weights | {"k": np.int64(k)})
        for k in (0, 1)
    )
    other.metadata_props.add(key="onnxbolt.precision", value="fp16")
    row = verify(model, other, providers=[CPU]).at("model")[0]
    assert (row.error, row.limit) == (1, 0)


def test_infinities_must_have_their_sign() -> None:
    model, other = (
        model_of("(float[4] x) => (float[4] y)", "a = Abs(x) y = Mul(a, b)", {"b": np.float32(b)})
        for b in (np.inf, -np.inf)
    )
    assert verify(model, model, providers=[CPU]).passed
    assert verify(model, other, providers=[CPU]).failures[0].reason == "infinities or NaNs differ"


def test_models_with_other_inputs_are_an_error(convolutions: ModelProto) -> None:
    with pytest.raises(InputError, match="the inputs differ: x and z"):
        verify(convolutions, model_of("(float[4] z) => (float[4] y)", "y = Relu(z)"))


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"seed": -1}, "seed=-1"),
        ({"atol": np.inf}, "atol=inf"),
        ({"rtol": np.nan}, "rtol=nan"),
        ({"atol": -1.0}, "atol=-1"),
    ],
)
def test_limits_that_no_comparison_can_use_are_refused(
    choice: dict[str, Any], message: str, convolutions: ModelProto
) -> None:
    with pytest.raises(InputError, match=message):
        verify(convolutions, convolutions, providers=[CPU], **choice)
    with pytest.raises(InputError, match=message):
        optimize(convolutions, library=False, **choice)


class TestFeeds:
    def test_indices_stay_below_what_they_select_from(self) -> None:
        model = model_of(
            "(int64[N,S] ids, int64[N,S] mask, bool[N] flag, uint8[64] bytes, float16[N,4] x) =>"
            " (float[N,S,2] y)",
            "u = Unsqueeze(ids, axis) s = Squeeze(u, axis) y = Gather(table, s)",
            {"table": np.zeros((7, 2), np.float32), "axis": np.array([0], np.int64)},
        )
        feeds = random_feeds(model)
        assert Bounds(model).of("ids") == 7
        assert feeds["ids"].shape == feeds["mask"].shape == (2, 16)
        assert feeds["ids"].max() < 7
        assert feeds["ids"].std() > 0
        assert (feeds["mask"] == 1).all()
        assert feeds["bytes"].max() > 127
        assert (feeds["flag"].dtype, feeds["x"].dtype) == (np.dtype(bool), np.dtype(np.float16))

    def test_same_seed_same_inputs(self, convolutions: ModelProto) -> None:
        first, second, other = (random_feeds(convolutions, seed)["x"] for seed in (0, 0, 1))
        assert np.array_equal(first, second)
        assert not np.array_equal(first, other)

    def test_a_model_with_a_baked_in_batch_gets_one_that_works(self) -> None:
        model = model_of(
            "(float[N,4] x) => (float[1,4] y)",
            "y = Reshape(x, s)",
            {"s": np.array([1, 4], np.int64)},
        )
        assert working_feeds(model, Runner(model, CPU), 0)["x"].shape == (1, 4)

    def test_a_model_that_runs_on_nothing_asks_for_inputs(self) -> None:
        model = model_of(
            "(float[N,4] x) => (float[3,3] y)",
            "y = Reshape(x, s)",
            {"s": np.array([3, 3], np.int64)},
        )
        with pytest.raises(InputError, match=r"inputs='x\.npz'"):
            working_feeds(model, Runner(model, CPU), 0)

    def test_a_model_that_does_not_load_is_not_asked_for_inputs(self) -> None:
        model = model_of(
            "(double[N,4,8] x) => (double[N,4,8] y)", "y = Conv(x, w)", {"w": np.ones((4, 4, 1))}
        )
        with pytest.raises(InputError, match=r"cannot load .* verify=False\. .*Conv"):
            working_feeds(model, Runner(model, CPU), 0)

    def test_inputs_from_a_file(
        self, convolutions: ModelProto, optimized: Optimized, tmp_path: Path
    ) -> None:
        path = tmp_path / "x.npz"
        np.savez(path, x=drawn(9, 2, 3, 12, 12))
        assert verify(convolutions, optimized(), inputs=path, providers=[CPU]).passed

    def test_bfloat16_from_a_file(self, tmp_path: Path) -> None:
        model = model_of("(bfloat16[2,4] x) => (float[2,4] y)", "y = Cast<to=1>(x)", {})
        x = drawn(0, 2, 4).astype(ml_dtypes.bfloat16)
        np.savez(tmp_path / "x.npz", x=x)
        assert np.array_equal(read_feeds(tmp_path / "x.npz", model)["x"], x)

    def test_an_original_that_does_not_run_on_given_inputs(
        self, convolutions: ModelProto, tmp_path: Path
    ) -> None:
        np.savez(tmp_path / "x.npz", x=np.zeros((1, 7, 12, 12), np.float32))
        with pytest.raises(
            InputError, match="the original model does not run on CPU with these inputs"
        ):
            verify(convolutions, convolutions, inputs=tmp_path / "x.npz", providers=[CPU])

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ({"z": np.zeros(4, np.float32)}, "holds z; the model's inputs are x"),
            ({"x": np.zeros((1, 3, 12, 12), np.float64)}, "x is float64, the model takes float32"),
        ],
    )
    def test_files_that_do_not_fit(
        self, arrays: Arrays, message: str, convolutions: ModelProto, tmp_path: Path
    ) -> None:
        np.savez(tmp_path / "x.npz", allow_pickle=True, **arrays)
        with pytest.raises(InputError, match=message):
            verify(convolutions, convolutions, inputs=tmp_path / "x.npz")

    def test_files_that_are_none(self, convolutions: ModelProto, tmp_path: Path) -> None:
        (tmp_path / "x.npz").write_text("no archive")
        (tmp_path / "empty.npz").touch()
        np.save(tmp_path / "x.npy", drawn(0, 1, 3, 12, 12))
        with zipfile.ZipFile(tmp_path / "text.npz", "w") as archive:
            archive.writestr("x", "hello")
        for name in ("x.npz", "missing.npz", "empty.npz", "x.npy", "text.npz"):
            with pytest.raises(InputError, match=r"not a readable \.npz"):
                verify(convolutions, convolutions, inputs=tmp_path / name)


def test_runner_exposes_any_tensor_and_shares_weights(convolutions: ModelProto) -> None:
    runner = Runner(convolutions, CPU)
    assert not next(
        tensor for tensor in runner.skeleton.graph.initializer if tensor.name == "w1"
    ).raw_data
    feeds = random_feeds(convolutions)
    values = runner.run(feeds, ["y", "h", "x"])
    assert (values["h"] >= 0).all()
    assert np.array_equal(values["x"], feeds["x"])
    assert list(runner.run(feeds, [])) == ["y"]


@pytest.mark.parametrize("precision", ["keep", "fp16", "bf16"])
def test_sequences_are_compared_by_their_parts(precision: str) -> None:
    body = "h = MatMul(x, w) r = Relu(h) y = SplitToSequence<axis=1>(r)"
    model, other = (
        model_of("(float[2,4] x) => (seq(float[2,1]) y)", body, {"w": drawn(seed, 4, 6)})
        for seed in (0, 1)
    )
    assert optimize(model, precision=precision, library=False, fuse="all").passed
    (row,) = (row for row in verify(model, other, providers=[CPU]).failures if row.level == "model")
    assert (row.name, row.kind) == ("y", "output")


def test_large_weights_that_nothing_reads_are_no_obstacle() -> None:
    model = model_of(
        "(float[2,4] x) => (float[2,4] y)", "y = Relu(x)", {"unused": drawn(0, 64, 64)}
    )
    assert verify(model, model, providers=[CPU]).passed


def test_widened_bfloat16_model_runs_on_the_cpu() -> None:
    weight = drawn(0, 4, 4).astype(ml_dtypes.bfloat16)
    model = model_of(
        "(float[2,4] x) => (float[2,4] y)",
        "a = Cast<to=16>(x) b = MatMul(a, w) y = Cast<to=1>(b)",
        {"w": weight},
    )
    x = drawn(1, 2, 4)
    wide, large = widened(model)
    y = Runner(wide, CPU, large=large).run({"x": x}, [])["y"]
    np.testing.assert_allclose(y, x @ weight.astype(np.float32), rtol=1e-6)
    # the original is untouched
    assert (
        helper.tensor_dtype_to_np_dtype(model.graph.initializer[0].data_type) == ml_dtypes.bfloat16
    )


def test_the_text_has_a_table_for_each_level_that_has_rows() -> None:
    rows = tuple(
        Row(f"t{level}", "part", "CPU", 0.5, 1.0, 0.0, 1.0, level=level).judged()
        for level in ("model", "segment")
    )
    lines = VerifyResult("fp16", rows).text().splitlines()
    starts = [
        next(i for i, line in enumerate(lines) if line.startswith(start))
        for start in ("segments of the model", "the whole model")
    ]
    assert starts == sorted(starts)
    assert lines[starts[0] + 2].startswith("tsegment")
    assert lines[starts[1] + 2].startswith("tmodel")
    assert not any(line.startswith("fused nodes") for line in lines)


class TestWhatRan:
    """The last line says what computed the answers: function bodies prove nothing about kernels."""

    def test_bodies_without_a_gpu(
        self, convolutions: ModelProto, optimized: Optimized, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("onnxbolt.gpu.compute_capability", lambda: None)
        result = verify(convolutions, optimized(), providers=[CPU])
        assert (
            result.text().splitlines()[-1]
            == result.verdict
            == "PASSED: function bodies only: no GPU here"
        )

    def test_bodies_with_a_gpu(
        self, convolutions: ModelProto, optimized: Optimized, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("onnxbolt.gpu.compute_capability", lambda: (9, 0))
        assert (
            verify(convolutions, optimized(), providers=[CPU]).verdict
            == "PASSED: function bodies only: no library"
        )
        used = verify(
            convolutions, optimized(), providers=[CPU], library=Path("not_loaded_on_the_CPU.so")
        )
        assert used.verdict == "PASSED: function bodies only: the CUDA provider was not used"

    def test_kernels(
        self, convolutions: ModelProto, optimized: Optimized, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With a provider that stands in for CUDA's."""
        library = Path("library.so")
        monkeypatch.setattr("onnxbolt.verify.usable", lambda *_: library)
        monkeypatch.setattr(
            "onnxbolt.verify.runner",
            lambda model, provider, notes, library: Runner(model, provider),
        )
        monkeypatch.setattr("onnxbolt.gpu.name", lambda: "NVIDIA H200")
        model = optimized()
        assert (
            verify(convolutions, model, providers=[CPU], library=library).verdict
            == "PASSED: kernels on NVIDIA H200"
        )
        shift_bias(model, fused(model, "FusedGemm"), 1.0)
        assert (
            verify(convolutions, model, providers=[CPU], library=library).verdict
            == "FAILED: kernels on NVIDIA H200"
        )

    def test_no_fused_nodes(self, convolutions: ModelProto) -> None:
        assert verify(convolutions, convolutions, providers=[CPU]).verdict.startswith(
            "PASSED: ONNX Runtime's own operators"
        )
