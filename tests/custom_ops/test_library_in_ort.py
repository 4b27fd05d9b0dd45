"""The library's C++ side inside ONNX Runtime: shapes, operands, choice of kernel, statuses,
threads. Kernels run on the CPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxbolt.epilogues import MAX_PARAMS
from onnxbolt.families import named
from tests import library_fixtures as fx


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> fx.HostLibrary:
    return fx.host_library(
        tmp_path_factory.mktemp("library") / "host.onnxbolt.so",
        archs=(80, 90),
        shared_memory=90_000,
    )


@pytest.fixture
def library(built: fx.HostLibrary) -> Iterator[fx.HostLibrary]:
    built.machine()
    built.fail()
    yield built
    built.machine()
    built.fail()


def session(
    model: onnx.ModelProto, library: fx.HostLibrary | None, **entries: str
) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4  # refusals are expected; the tests read them from the exception
    for key, value in entries.items():
        options.add_session_config_entry(f"onnxbolt.{key}", value)
    if library:
        options.register_custom_ops_library(str(library.path))
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def compare(
    model: onnx.ModelProto, library: fx.HostLibrary, *shapes: tuple[int, ...]
) -> np.ndarray:
    """Run kernel and body on the same random inputs; they have to agree."""
    random = np.random.default_rng(1)
    feeds = {
        value.name: random.standard_normal(shape).astype(np.float32)
        for value, shape in zip(model.graph.input, shapes, strict=True)
    }
    before = library.launches
    ours = session(model, library).run(None, feeds)
    assert library.launches == before + 1
    body = session(model, None).run(None, feeds)
    for mine, expected in zip(ours, body, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-5)
    return ours[0]


CONV_ATTRIBUTES: dict[str, Any] = {
    "strides": [2, 1],
    "pads": [0, 1, 2, 3],
    "dilations": [1, 2],
    "group": 2,
}
CASES: dict[str, fx.Case] = {
    "gemm": (fx.fused_model(fx.GEMM, ["B", "S", 24], (16, 24), [[16]]), [(2, 5, 24)]),
    "gated unit": (fx.fused_model(fx.GLU, ["B", "S", 24], (32, 24), [[16], [16]]), [(2, 5, 24)]),
    "rotary": (
        fx.fused_model(
            fx.ROTARY, ["B", "S", 24], (32, 24), [[32], [1, "S", 8]], rotated_columns=16
        ),
        [(2, 5, 24), (1, 5, 8)],
    ),
    "batched gemm": (
        fx.fused_model(fx.BATCHED, [3, 5, 24], (3, 16, 24), [[16], [3, 5, 16]]),
        [(3, 5, 24), (3, 5, 16)],
    ),
    "batched gemm by one matrix": (
        fx.fused_model(fx.BATCHED, ["B", 5, 24], (1, 16, 24), [[16], ["B", 5, 16]]),
        [(3, 5, 24), (3, 5, 16)],
    ),
    "batched gemm of one matrix": (
        fx.fused_model(fx.BATCHED, [1, 5, 24], (3, 16, 24), [[16], [3, 5, 16]]),
        [(1, 5, 24), (3, 5, 16)],
    ),
    "gemm of odd rows": (
        fx.fused_model(fx.GEMM_ROWS, ["B", "S", 21], (16, 24), [[16]]),
        [(2, 5, 21)],
    ),
    "gemm with residual": (
        fx.fused_model(fx.GEMM_ADD, [7, 24], (16, 24), [[16], [7, 16]], epilogue_params=[0.25]),
        [(7, 24), (7, 16)],
    ),
    "conv": (
        fx.fused_model(
            fx.CONV, ["N", 9, 11, 8], (6, 3, 2, 4), [[6], ["N", 5, 13, 6]], **CONV_ATTRIBUTES
        ),
        [(2, 9, 11, 8), (2, 5, 13, 6)],
    ),
    "first conv": (
        fx.fused_model(
            fx.FIRST,
            ["N", 3, 9, 11],
            (6, 3, 2, 3),
            [[6]],
            strides=[2, 1],
            pads=[0, 1, 2, 3],
            dilations=[1, 1],
            group=1,
        ),
        [(2, 3, 9, 11)],
    ),
    "last conv": (
        fx.fused_model(
            fx.LAST, ["N", "H", 11, 8], (5, 3, 2, 8), [[5]], **{**CONV_ATTRIBUTES, "group": 1}
        ),
        [(2, 9, 11, 8)],
    ),
    "last conv 1d": (
        fx.fused_model(
            fx.LAST_1D,
            [2, "L", 4],
            (6, 3, 4),
            [[6]],
            strides=[2],
            pads=[1, 2],
            dilations=[1],
            group=1,
        ),
        [(2, 12, 4)],
    ),
    "gemm chain": (
        fx.fused_model(fx.GEMM_CHAIN, ["B", "S", 24], (16, 24), [[16], [8, 16], [8]]),
        [(2, 5, 24), (8, 16)],
    ),
    "gemm chain of odd rows": (
        fx.fused_model(
            fx.GEMM_CHAIN_PADDED, ["B", "S", 21], (16, 24), [[16], [8, 16], [8], ["B", "S", 8]]
        ),
        [(2, 5, 21), (8, 16), (2, 5, 8)],
    ),
    "conv chain": (
        fx.fused_model(
            fx.CONV_CHAIN,
            ["N", 9, 11, 8],
            (6, 3, 2, 4),
            [[6], [10, 1, 1, 6], [10], ["N", 5, 13, 10]],
            **CONV_ATTRIBUTES,
        ),
        [(2, 9, 11, 8), (10, 1, 1, 6), (2, 5, 13, 10)],
    ),
    "conv 1d": (
        fx.fused_model(
            fx.CONV_1D,
            [2, "L", 4],
            (6, 3, 4),
            [[6]],
            strides=[2],
            pads=[1, 2],
            dilations=[1],
            group=1,
        ),
        [(2, 12, 4)],
    ),
    "global pool": (fx.fused_model(fx.GLOBAL_POOL, [2, "H", "W", 3]), [(2, 5, 7, 3)]),
    "to nhwc": (fx.fused_model(fx.TO_NHWC, ["N", 5, "H", "W"], padding=3), [(2, 5, 7, 3)]),
    "to nchw": (fx.fused_model(fx.TO_NCHW, ["N", "H", "W", 8], padding=3), [(2, 4, 7, 8)]),
    "to nlc": (fx.fused_model(fx.TO_NLC, [2, "C", "L"], padding=0), [(2, 5, 7)]),
    "elementwise": (
        fx.fused_model(
            fx.ELEMENTWISE, ["N", 3, "W", 4], (), [[4], ["N", 3, "W", 4]], epilogue_params=[0.25]
        ),
        [(2, 3, 5, 4), (2, 3, 5, 4)],
    ),
    "layer norm": (
        fx.fused_model(
            fx.LAYER_NORM, ["B", "S", 24], (), [["B", "S", 24], [24], [24]], epsilon=0.25
        ),
        [(2, 5, 24), (2, 5, 24)],
    ),
    "rms norm": (
        fx.fused_model(fx.RMS_NORM, ["B", "S", 24], (), [[24]], epsilon=0.25),
        [(2, 5, 24)],
    ),
    "group norm": (
        fx.fused_model(
            fx.GROUP_NORM,
            ["N", 3, "W", 8],
            (),
            [[8], [8], [8], ["N", 3, "W", 8]],
            groups=2,
            epsilon=0.25,
            epilogue_params=[0.25],
        ),
        [(2, 3, 5, 8), (2, 3, 5, 8)],
    ),
    "group norm 1d": (
        fx.fused_model(fx.GROUP_NORM_1D, ["N", "L", 8], (), [[8], [8]], groups=8, epsilon=0.25),
        [(2, 15, 8)],
    ),
    "group norm 3d": (
        fx.fused_model(
            fx.GROUP_NORM_3D,
            ["N", "D", 3, 5, 8],
            (),
            [[8], [8], *[["N", 8, 1, 1, 1]] * 3],
            groups=8,
            epsilon=0.25,
        ),
        [(2, 4, 3, 5, 8), *[(2, 8, 1, 1, 1)] * 3],
    ),
    "group norm with vectors of images": (
        fx.fused_model(
            fx.GROUP_NORM_OF_IMAGES,
            ["N", 3, "W", 8],
            (),
            [[8], [8], *[["N", 8, 1, 1]] * 3],
            groups=4,
            epsilon=0.25,
            epilogue_params=[0.25],
        ),
        [(2, 3, 5, 8), *[(2, 8, 1, 1)] * 3],
    ),
    "token norm": (
        fx.fused_model(
            fx.TOKEN_NORM, ["B", 5, 24], (), [[7, 24], [24], [24]], epsilon=0.25, prefix=2
        ),
        [(3, 5, 24), (7, 24)],
    ),
    "token rms norm": (
        fx.fused_model(fx.TOKEN_RMS_NORM, ["B", "S", 24], (), [[5, 24], [24]], epsilon=0.25),
        [(3, 5, 24), (5, 24)],
    ),
    "modulated norm": (
        fx.fused_model(
            fx.MODULATED_NORM,
            ["B", "S", 24],
            (),
            [["B", 1, 24], ["B", 24], ["B", 1, 24], ["B", "S", 24], [24], [24]],
            epsilon=0.25,
        ),
        [(3, 5, 24), (3, 1, 24), (3, 24), (3, 1, 24), (3, 5, 24)],
    ),
    "modulated rms norm": (
        fx.fused_model(
            fx.MODULATED_RMS_NORM,
            ["B", "S", 24],
            (),
            [["B", 24], ["B", 1, 24], [24]],
            epsilon=0.25,
        ),
        [(3, 5, 24), (3, 24), (3, 1, 24)],
    ),
    "squeeze-excite": (
        fx.fused_model(
            fx.SQUEEZE_EXCITE,
            ["N", 3, "W", 6],
            (4, 6),
            [[4], [6, 4], [6]],
            epilogue_params=[0.25, 0.5],
        ),
        [(2, 3, 5, 6), (6, 4)],
    ),
    "squeeze-excite and sum": (
        fx.fused_model(
            fx.SQUEEZE_EXCITE_ADD,
            ["N", 3, "W", 6],
            (4, 6),
            [[4], [6, 4], [6], ["N", 3, "W", 6]],
            epilogue_params=[0.25, 0.5],
        ),
        [(2, 3, 5, 6), (6, 4), (2, 3, 5, 6)],
    ),
    "nearest resize": (
        fx.fused_model(fx.NEAREST, ["N", 5, "W", 3], sampling=[0, 2, 2], sizes=[7, 9]),
        [(2, 5, 4, 3)],
    ),
    "linear resize": (
        fx.fused_model(fx.LINEAR, ["N", 5, "W", 3], sampling=[1, 0, 0], scales=[2.0, 1.5]),
        [(2, 5, 7, 3)],
    ),
    "cubic resize": (
        fx.fused_model(
            fx.CUBIC,
            ["N", 5, "W", 3],
            sampling=[2, 0, 0],
            scales=[2.0, 1.5],
            cubic_coeff_a=-0.5,
            exclude_outside=1,
        ),
        [(2, 5, 7, 3)],
    ),
    "resize and sum": (
        fx.fused_model(
            fx.SUMMED,
            ["N", "H", "W", 3],
            (),
            [[3], ["N", "P", "Q", 3]],
            sampling=[0, 2, 2],
            scales=[2.0, 1.5],
            epilogue_params=[0.25],
        ),
        [(2, 5, 7, 3), (2, 10, 10, 3)],
    ),
    "resize like another image": (
        fx.fused_model(
            fx.LIKE,
            ["N", "H", "W", 3],
            (),
            [["N", "P", "Q", 2], ["N", "P", "Q", 3]],
            sampling=[1, 0, 0],
        ),
        [(2, 5, 7, 3), (2, 6, 9, 2), (2, 6, 9, 3)],
    ),
    "depth to space": (
        fx.fused_model(fx.TO_SPACE, ["N", "H", 5, 16], blocksize=2, channels=[0, 12]),
        [(2, 3, 5, 16)],
    ),
    "depth to space by channel": (
        fx.fused_model(
            fx.TO_SPACE_BY_CHANNEL,
            ["N", 3, "W", 18],
            (),
            [[2], ["N", 9, "Q", 2]],
            blocksize=3,
            by_channel=1,
            epilogue_params=[0.25],
        ),
        [(2, 3, 4, 18), (2, 9, 12, 2)],
    ),
    "space to depth": (
        fx.fused_model(fx.TO_DEPTH, ["N", "H", "W", 3], (), [["N", "P", "Q", 12]], blocksize=2),
        [(2, 4, 6, 3), (2, 2, 3, 12)],
    ),
    "grid sample": (
        fx.fused_model(
            fx.SAMPLED, ["N", "H", "W", 3], (), [["N", "P", "Q", 2]], sampling=[1, 0, 0]
        ),
        [(2, 5, 6, 3), (2, 3, 4, 2)],
    ),
    "deformable attention": (
        fx.fused_model(
            fx.DEFORMABLE,
            ["N", 26, 6],
            (),
            [["N", "Q", 2, 2, 2, 2], ["N", "Q", 2, 4]],
            sampling=[1, 0, 0],
            heads=2,
            levels=[4, 5, 2, 3],
        ),
        [(2, 26, 6), (2, 3, 2, 2, 2, 2), (2, 3, 2, 4)],
    ),
    "depthwise conv": (
        fx.fused_model(
            fx.CONV,
            ["N", 9, 11, 6],
            (6, 3, 2, 1),
            [[6], ["N", 5, 13, 6]],
            **{**CONV_ATTRIBUTES, "group": 6},
        ),
        [(2, 9, 11, 6), (2, 5, 13, 6)],
    ),
}
POOL_SHAPES = [(height, ceil) for height in (5, 6, 7, 8) for ceil in (0, 1)]


@pytest.mark.parametrize("case", CASES)
def test_kernel_agrees_with_body(library: fx.HostLibrary, case: str) -> None:
    model, shapes = CASES[case]
    compare(model, library, *shapes)


@pytest.mark.parametrize(("height", "ceil"), POOL_SHAPES)
@pytest.mark.parametrize("op", [fx.MAX_POOL, fx.AVERAGE_POOL], ids=["max", "average"])
def test_pools_agree_with_body(
    library: fx.HostLibrary, op: fx.Fused, height: int, ceil: int
) -> None:
    extra = {"dilations": [1, 1]} if op is fx.MAX_POOL else {"count_include_pad": 0}
    model = fx.fused_model(
        op,
        ["N", "H", "W", 3],
        kernel_shape=[3, 2],
        strides=[2, 2],
        pads=[1, 0, 1, 1],
        ceil_mode=ceil,
        **extra,
    )
    compare(model, library, (2, height, 6, 3))


@pytest.mark.parametrize(
    ("case", "pads"),
    [
        ("conv", [0, 1, 2, 3]),
        ("first conv", [0, 1, 2, 3]),
        ("last conv", [0, 1, 2, 3]),
        ("conv chain", [0, 1, 2, 3]),
        ("conv 1d", [0, 1, 0, 2]),
        ("last conv 1d", [0, 1, 0, 2]),
    ],
)
def test_kernels_get_each_side_s_padding(
    library: fx.HostLibrary, case: str, pads: list[int]
) -> None:
    compare(CASES[case][0], library, *CASES[case][1])
    assert library.last_pads == pads


@pytest.mark.parametrize("op", [fx.MAX_POOL, fx.AVERAGE_POOL], ids=["max", "average"])
def test_pools_get_each_side_s_padding(library: fx.HostLibrary, op: fx.Fused) -> None:
    extra = {"dilations": [1, 1]} if op is fx.MAX_POOL else {"count_include_pad": 0}
    model = fx.fused_model(
        op,
        ["N", "H", "W", 3],
        kernel_shape=[4, 4],
        strides=[1, 1],
        pads=[0, 1, 2, 3],
        ceil_mode=0,
        **extra,
    )
    compare(model, library, (2, 7, 6, 3))
    assert library.last_pads == [0, 1, 2, 3]


def inferred(
    model: onnx.ModelProto, library: fx.HostLibrary, output: str = "y"
) -> list[int | str | None]:
    """The shape that ONNX Runtime knows for an output, seen through a node behind it, whose
    shape it infers itself."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    model.graph.node.add(op_type="Identity", input=[output], output=["z"])
    model.graph.output[0].CopyFrom(
        onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, None)
    )
    return list(session(model, library).get_outputs()[0].shape)


POOL_ATTRIBUTES: dict[str, Any] = {
    "kernel_shape": [3, 3],
    "strides": [2, 1],
    "pads": [1, 1, 1, 1],
    "ceil_mode": 0,
    "count_include_pad": 0,
}
SHAPES = {
    "gemm": (CASES["gemm"][0], ["B", "S", 16]),
    "gated unit": (CASES["gated unit"][0], ["B", "S", 16]),
    "rotary": (CASES["rotary"][0], ["B", "S", 32]),
    "batched gemm": (CASES["batched gemm"][0], [3, 5, 16]),
    "batched gemm by one matrix": (CASES["batched gemm by one matrix"][0], ["B", 5, 16]),
    "conv": (CASES["conv"][0], ["N", 5, 13, 6]),
    "last conv": (CASES["last conv"][0], ["N", 5, "floor((H-1)/2)+1", 13]),
    "gemm chain": (CASES["gemm chain"][0], ["B", "S", 8]),
    "conv chain": (CASES["conv chain"][0], ["N", 5, 13, 10]),
    "first conv": (CASES["first conv"][0], ["N", 5, 14, 6]),
    "conv 1d": (CASES["conv 1d"][0], [2, "floor((L+0)/2)+1", 6]),
    "global pool": (CASES["global pool"][0], [2, 1, 1, 3]),
    "to nhwc": (CASES["to nhwc"][0], ["N", "H", "W", 8]),
    "to nchw": (CASES["to nchw"][0], ["N", 5, "H", "W"]),
    "to nlc": (CASES["to nlc"][0], [2, "L", "C"]),
    "elementwise": (CASES["elementwise"][0], ["N", 3, "W", 4]),
    "squeeze-excite": (CASES["squeeze-excite"][0], ["N", 3, "W", 6]),
    "token norm": (CASES["token norm"][0], ["B", 7, 24]),
    "token rms norm": (CASES["token rms norm"][0], ["B", "S", 24]),
    "nearest resize": (CASES["nearest resize"][0], ["N", 7, 9, 3]),
    "linear resize": (CASES["linear resize"][0], ["N", 10, "floor(W*1.500000)", 3]),
    "depth to space": (CASES["depth to space"][0], ["N", "H*2", 10, 3]),
    "pool": (
        fx.fused_model(fx.AVERAGE_POOL, ["N", "H", "W", 3], **POOL_ATTRIBUTES),
        ["N", "floor((H-1)/2)+1", "W", 3],
    ),
}


@pytest.mark.parametrize("case", SHAPES)
def test_shapes_follow_symbols(library: fx.HostLibrary, case: str) -> None:
    model, shape = SHAPES[case]
    assert inferred(model, library) == shape


def test_unknown_shapes_stay_unknown(library: fx.HostLibrary) -> None:
    model = fx.fused_model(fx.GEMM, [4, 8], (16, 8), [[16]], rank=2)
    model.graph.node[0].input[0] = "reshaped"
    model.graph.node.insert(0, onnx.helper.make_node("Reshape", ["x", "shape"], ["reshaped"]))
    model.graph.input.append(
        onnx.helper.make_tensor_value_info("shape", onnx.TensorProto.INT64, [2])
    )
    (y,) = session(model, library).run(
        None, {"x": np.ones((4, 8), np.float32), "shape": np.array([-1, 8])}
    )
    assert y.shape == (4, 16)


def test_rows_are_chosen_by_m_at_run_time(library: fx.HostLibrary) -> None:
    rows = [
        fx.config(named("gemm_2x"), max_m=9).row(),
        fx.config(named("gemm_2x"), min_m=10, max_m=99).row(),
    ]
    one = session(
        fx.fused_model(fx.GEMM, ["M", 8], (16, 8), [[16]], configs=[*rows[0], *rows[1]]), library
    )
    for m, max_m in ((1, 9), (10, 99), (9, 9)):
        one.run(None, {"x": np.ones((m, 8), np.float32)})
        assert library.last_max_m == max_m
    with pytest.raises(Exception, match=r"the node.*no configuration serves m = 100"):
        one.run(None, {"x": np.ones((100, 8), np.float32)})


def test_lower_minor_serves_where_its_kernels_fit(library: fx.HostLibrary) -> None:
    model, shapes = CASES["gemm"]
    library.machine(sm=86, shared_memory=101_376)
    compare(model, library, *shapes)


def test_empty_tensors_are_fine(library: fx.HostLibrary) -> None:
    model, _ = CASES["gemm"]
    before = library.launches
    assert session(model, library).run(None, {"x": np.zeros((0, 5, 24), np.float32)})[0].shape == (
        0,
        5,
        16,
    )
    assert library.launches == before


def test_eight_threads_share_a_session(library: fx.HostLibrary) -> None:
    model, _ = CASES["gemm"]
    ours, body = session(model, library), session(model, None)
    inputs = [
        np.random.default_rng(i).standard_normal((1 + i % 5, 3, 24)).astype(np.float32)
        for i in range(64)
    ]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda x: ours.run(None, {"x": x})[0], inputs))
    for x, y in zip(inputs, results, strict=True):
        np.testing.assert_allclose(y, body.run(None, {"x": x})[0], rtol=1e-5, atol=1e-5)


def test_sessions_of_many_threads_share_the_domain(library: fx.HostLibrary) -> None:
    model, _ = CASES["gemm"]
    x = np.ones((1, 1, 24), np.float32)
    with ThreadPoolExecutor(8) as pool:
        results = list(
            pool.map(lambda _: session(model, library).run(None, {"x": x})[0], range(16))
        )
    assert all(np.array_equal(result, results[0]) for result in results)


def gemm_with(**attributes: Any) -> onnx.ModelProto:
    return fx.fused_model(fx.GEMM, [4, 8], (16, 8), [[16]], **attributes)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"format": 2}, "node format 2.*run onnxbolt optimize again"),
        ({"configs": [80, 0, 7]}, "configs or epilogue_params is damaged"),
        (
            {"configs": fx.config(named("gemm_2x"), stages=5).row()},
            "no kernel sm_80.*stages 5.*Run: onnxbolt build",
        ),
        (
            {"configs": fx.config(named("gemm_2x"), 90).row()},
            "no configuration for sm_80.*--arch sm_80",
        ),
        ({"epilogue_params": [0.0] * (MAX_PARAMS + 1)}, "configs or epilogue_params is damaged"),
    ],
)
def test_session_is_refused(
    library: fx.HostLibrary, attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(Exception, match=f"{fx.GEMM.spec.name} 'the node'.*{message}"):
        session(gemm_with(**attributes), library)


def test_kernel_that_cannot_be_prepared(library: fx.HostLibrary) -> None:
    library.fail(prepare=True)
    with pytest.raises(Exception, match=r"the node.*prepared to fail"):
        session(gemm_with(), library)


def test_launch_that_fails(library: fx.HostLibrary, capfd: pytest.CaptureFixture[str]) -> None:
    library.fail(launch=True)
    with pytest.raises(Exception, match=r"the node.*x \[4,8\]: launched to fail"):
        session(gemm_with(), library).run(None, {"x": np.ones((4, 8), np.float32)})
    # onnxruntime starts again without the GPU where it sees EP_FAIL
    assert "Falling back" not in capfd.readouterr().out


@pytest.mark.parametrize(("op", "shape"), [(fx.TO_NCHW, (2, 4, 4, 3)), (fx.TO_NHWC, (2, 3))])
def test_layout_changes_that_do_not_fit_are_refused(
    library: fx.HostLibrary, op: fx.Fused, shape: tuple[int, ...]
) -> None:
    model = fx.fused_model(op, [f"d{i}" for i in range(len(shape))], padding=3)
    with pytest.raises(Exception, match="x has shape"):
        session(model, library).run(None, {"x": np.ones(shape, np.float32)})


@pytest.mark.parametrize(
    ("rows", "prefix", "message"),
    [
        ((8, 24), 2, r"input 1 has shape \[8,24\], expected \[7,24\]"),
        ((7, 20), 2, r"input 1 has shape \[7,20\], expected \[7,24\]"),
        ((7, 24), -2, "attribute prefix is negative"),
    ],
)
def test_rows_of_tokens_are_checked(
    library: fx.HostLibrary, rows: tuple[int, ...], prefix: int, message: str
) -> None:
    operands = ["S", "C"], [24], [24]
    model = fx.fused_model(fx.TOKEN_NORM, ["B", "L", 24], (), operands, epsilon=0.25, prefix=prefix)
    feeds = {"x": np.ones((3, 5, 24), np.float32), "input0": np.ones(rows, np.float32)}
    with pytest.raises(Exception, match=message):
        session(model, library).run(None, feeds)


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        ((2, 24), r"input 1 has shape \[2,24\], expected \[3,24\]"),
        ((3, 2, 24), r"input 1 has shape \[3,2,24\], expected \[3,1,24\]"),
    ],
)
def test_vectors_of_sequences_are_checked(
    library: fx.HostLibrary, scale: tuple[int, ...], message: str
) -> None:
    operands: list[list[Any]] = [[None] * len(scale), ["B", 1, 24], [24]]
    model = fx.fused_model(fx.MODULATED_RMS_NORM, ["B", "S", 24], (), operands, epsilon=0.25)
    given = {"x": (3, 5, 24), "input0": scale, "input1": (3, 1, 24)}
    feeds = {name: np.ones(shape, np.float32) for name, shape in given.items()}
    with pytest.raises(Exception, match=message):
        session(model, library).run(None, feeds)


@pytest.mark.parametrize(
    ("weight", "operand", "x", "message"),
    [
        ((16, 9), [16], (4, 8), "do not fit: 8 channels, expected 9"),
        ((16, 8), [15], (4, 8), r"input 2 has shape \[15\], expected \[16\]"),
        ((16, 8, 1), [16], (4, 8), "weight has shape .*expected rank 2"),
    ],
)
def test_operands_are_checked(
    library: fx.HostLibrary,
    weight: tuple[int, ...],
    operand: list[int],
    x: tuple[int, ...],
    message: str,
) -> None:
    model = fx.fused_model(fx.GEMM, ["M", "K"], weight, [operand])
    with pytest.raises(Exception, match=message):
        session(model, library).run(None, {"x": np.ones(x, np.float32)})


@pytest.mark.parametrize(
    ("squeeze", "excite", "bias", "message"),
    [
        ((4, 7), (6, 4), 4, r"input 1 has shape \[4,7\], expected \[4,6\]"),
        ((4, 6), (7, 4), 4, "do not fit"),
        ((4, 6), (6, 4), 5, r"input 2 has shape \[5\], expected \[4\]"),
    ],
)
def test_weights_of_squeeze_excite_are_checked(
    library: fx.HostLibrary,
    squeeze: tuple[int, int],
    excite: tuple[int, int],
    bias: int,
    message: str,
) -> None:
    model = fx.fused_model(
        fx.SQUEEZE_EXCITE,
        ["N", 3, "W", "C"],
        squeeze,
        [[bias], list(excite), [excite[0]]],
        epilogue_params=[0.25, 0.5],
    )
    with pytest.raises(Exception, match=message):
        session(model, library).run(
            None, {"x": np.ones((1, 3, 2, 6), np.float32), "operand2": np.ones(excite, np.float32)}
        )


def test_residual_of_another_shape_is_refused(library: fx.HostLibrary) -> None:
    model = fx.fused_model(
        fx.GEMM_ADD, ["M", 24], (16, 24), [[16], ["R", 16]], epilogue_params=[0.25]
    )
    with pytest.raises(Exception, match=r"input 3 has shape \[1,16\], expected \[7,16\]"):
        session(model, library).run(
            None, {"x": np.ones((7, 24), np.float32), "operand2": np.ones((1, 16), np.float32)}
        )


MACHINES = {
    "no gpu": ({"error": 100, "count": 0}, "no NVIDIA GPU or driver is visible"),
    "no driver": ({"error": 35, "driver": 0, "count": 0}, "no NVIDIA GPU or driver is visible"),
    "old driver": (
        {"error": 35, "driver": 12040, "count": 0},
        "driver supports CUDA 12.4 and the library needs CUDA 13.0",
    ),
    "cuda fails": ({"error": 999, "count": 0}, "CUDA does not start"),
    "older gpu": ({"sm": 75}, r"GPU 0 is sm_75 and the library holds kernels for sm_90a, sm_80"),
    "newer gpu": ({"sm": 100}, r"GPU 0 is sm_100"),
    "little shared memory": ({"sm": 86, "shared_memory": 80_000}, r"GPU 0 is sm_86"),
}


@pytest.mark.parametrize("case", MACHINES)
def test_machine_that_cannot_run_the_kernels(
    library: fx.HostLibrary, case: str, capfd: pytest.CaptureFixture[str]
) -> None:
    machine, reason = MACHINES[case]
    library.machine(**machine)
    model, _ = CASES["gemm"]
    before = library.launches
    session(model, library).run(None, {"x": np.ones((1, 1, 24), np.float32)})
    assert library.launches == before
    warnings = capfd.readouterr().err.splitlines()
    assert len(warnings) == 1
    assert warnings[0].startswith("onnxbolt: warning:")
    assert re.search(reason, warnings[0])


def test_disabled_library_is_silent(
    library: fx.HostLibrary, capfd: pytest.CaptureFixture[str]
) -> None:
    model, _ = CASES["gemm"]
    before = library.launches
    session(model, library, enable="0").run(None, {"x": np.ones((1, 1, 24), np.float32)})
    assert (library.launches, capfd.readouterr().err) == (before, "")


def test_device_of_the_session_is_asked(
    library: fx.HostLibrary, capfd: pytest.CaptureFixture[str]
) -> None:
    model, _ = CASES["gemm"]
    session(model, library, device="1")
    assert "there is no GPU 1, 1 are visible" in capfd.readouterr().err
