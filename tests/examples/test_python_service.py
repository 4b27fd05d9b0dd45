"""examples/python_service: buckets, joined requests and HTTP, on the CPU; its graphs on a GPU."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import uvicorn

import onnxbolt
from tests.conftest import ROOT
from tests.examples.loading import load
from tests.support import Net

service = load("examples/python_service/service.py")
Arrays = dict[str, np.ndarray]
SHAPES = [(("ids", ()), ("x", (3, size, size))) for size in (8, 16)]


def net(rows: int | str = "N", size: int | str = "S") -> onnx.ModelProto:
    """A convolution of images of any size, and a row of a table for each image."""
    made = Net({"x": (rows, 3, size, size), "ids": (rows,)}, types={"ids": onnx.TensorProto.INT64})
    hidden = made.node("Relu", made.conv("x", 3, 16, 3, pads=[1, 1, 1, 1]))
    pooled = made.node("Flatten", made.node("GlobalAveragePool", hidden))
    row = made.node("Gather", made.normal(8, 16), "ids")
    return made.model(made.node("Relu", made.linear(made.node("Add", pooled, row), 16, 24)))


def optimized(directory: Path, model: onnx.ModelProto, **options: Any) -> str:
    out = directory / "fast.onnx"
    onnxbolt.optimize(model, out, fuse="all", verify=False, **options)
    return str(out)


def feeds(rows: int, size: int, seed: int = 0) -> Arrays:
    random = np.random.default_rng(seed)
    return {
        "x": random.standard_normal((rows, 3, size, size)).astype(np.float32),
        "ids": random.integers(0, 8, rows),
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return optimized(tmp_path_factory.mktemp("service"), net(), archs=("sm_80",), library=False)


@pytest.fixture(scope="module")
def model(path: str) -> Any:
    return service.Model(path, [4, 1, 2], SHAPES)


@pytest.fixture(scope="module")
def address(model: Any) -> Iterator[str]:
    with served(model) as found:
        yield found


def expected(model: Any, given: Arrays) -> np.ndarray:
    """The output, each row by itself."""
    rows = [
        model.session.run(None, {name: values[i : i + 1] for name, values in given.items()})[0]
        for i in range(len(given["ids"]))
    ]
    return np.concatenate(rows)


def assert_rows(model: Any, given: Arrays, got: Arrays) -> None:
    (values,) = got.values()
    np.testing.assert_allclose(values, expected(model, given), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("size", [8, 16])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 11])
def test_buckets_are_filled_in_part_and_in_whole(model: Any, rows: int, size: int) -> None:
    for seed in range(2):  # rows of the run before must not show
        given = feeds(rows, size, seed)
        assert_rows(model, given, model.run(given))


def test_the_smallest_bucket_that_holds_the_rows_is_taken(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    run = service.Bucket.run

    def noted(bucket: Any, given: Arrays) -> Arrays:
        taken.append(bucket.rows)
        found: Arrays = run(bucket, given)
        return found

    monkeypatch.setattr(service.Bucket, "run", noted)
    for rows in (1, 2, 3, 6):
        model.run(feeds(rows, 8))
    assert taken == [1, 2, 4, 4, 2]
    taken.clear()
    given = feeds(3, 12)  # a shape without a bucket
    assert_rows(model, given, model.run(given))
    assert taken == []


def test_a_model_of_fixed_sizes_has_one_bucket(tmp_path: Path) -> None:
    path = optimized(tmp_path, net(2, 8), archs=("sm_80",), library=False)
    model = service.Model(path, [1, 16])
    assert model.batches == [2]
    given = feeds(3, 8)
    (values,) = model.run(given).values()
    assert values.shape == (3, 24)


def test_models_that_do_not_work_row_by_row_are_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"inputs \['x'\] have open sizes: give shapes"):
        service.Model(path, [1])
    made = Net({"x": ("N", 4)})
    onnx.save(
        made.model(made.node("ReduceSum", "x", made.const([0], np.int64))), tmp_path / "sum.onnx"
    )
    with (
        pytest.raises(ValueError, match="only models whose outputs have a row for each row"),
        pytest.warns(onnxbolt.OnnxboltWarning),
    ):
        service.Model(str(tmp_path / "sum.onnx"), [2])


def test_waiting_requests_run_together(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run ends only when all requests wait."""
    ran: list[int] = []
    all_wait = threading.Event()
    run = model.run

    def slow(given: Arrays) -> Arrays:
        ran.append(len(given["ids"]))
        assert all_wait.wait(60)
        return run(given)

    monkeypatch.setattr(model, "run", slow)
    requests = [feeds(1 + seed % 3, 8 if seed % 2 else 16, seed) for seed in range(9)]

    async def answers() -> list[Arrays]:
        batcher = service.Batcher(model)
        serving = asyncio.create_task(batcher.serve())
        first = asyncio.create_task(batcher.predict(requests[0]))
        while not ran:
            await asyncio.sleep(0.001)
        others = [asyncio.create_task(batcher.predict(each)) for each in requests[1:]]
        gone = asyncio.create_task(batcher.predict(feeds(1, 8)))
        await asyncio.sleep(0)  # each of them is in the queue now
        gone.cancel()
        all_wait.set()
        found = await asyncio.gather(first, *others)
        serving.cancel()
        return found

    for given, got in zip(requests, asyncio.run(answers()), strict=True):
        assert_rows(model, given, got)
    assert len(ran) == 3  # the first one, and those of each shape


@pytest.fixture
def detector(tmp_path: Path) -> Any:
    """A model that has as many boxes of an image as the data have it."""
    made = Net({"x": (1, 16)})
    places = made.node("NonZero", made.node("Relu", "x"))
    positives = made.node("Transpose", places, perm=[1, 0])
    model = made.model(made.node("Unsqueeze", positives, made.const([0], np.int64)))
    path = optimized(tmp_path, model, archs=("sm_80",), library=False)
    with pytest.warns(UserWarning, match="no CUDA graphs, since the data decide the size of the"):
        return service.Model(path, [1])


def test_outputs_are_as_large_as_the_data_have_it(detector: Any) -> None:
    images = [np.arange(16, dtype=np.float32)[None] - first for first in (0, 3, 20, 1)]

    async def answers() -> list[Arrays]:
        batcher = service.Batcher(detector)
        waiting = [asyncio.create_task(batcher.predict({"x": image})) for image in images]
        await asyncio.sleep(0)  # each of them is in the queue now
        serving = asyncio.create_task(batcher.serve())
        found = await asyncio.gather(*waiting)
        serving.cancel()
        return found

    for image, got in zip(images, asyncio.run(answers()), strict=True):
        (boxes,) = got.values()
        np.testing.assert_array_equal(boxes, np.argwhere(image > 0)[None])


def test_a_model_without_graphs_asks_for_none(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    provider = onnxbolt.cuda_provider

    def noted(model: str, **options: Any) -> Any:
        asked.append(options["enable_cuda_graph"])
        return provider(model, **options)

    monkeypatch.setattr(onnxbolt, "cuda_provider", noted)
    service.Model(path, [1], SHAPES[:1])
    monkeypatch.setattr(onnxbolt, "cuda_graph_obstacle", lambda model: "its nodes run on the CPU")
    with pytest.warns(UserWarning, match="no CUDA graphs, since its nodes run on the CPU"):
        service.Model(path, [1], SHAPES[:1])
    assert asked == [True, False]


def test_the_service_starts_without_onnx() -> None:
    program = "import service, sys; print(*({'onnx', 'onnx_graphsurgeon'} & set(sys.modules)))"
    printed = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        cwd=ROOT / "examples/python_service",
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    ).stdout
    assert printed == "\n"


def test_a_run_that_fails_fails_its_own_requests_alone(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def outcomes() -> list[Any]:
        batcher = service.Batcher(model)
        serving = asyncio.create_task(batcher.serve())
        found = [
            *await asyncio.gather(batcher.predict(feeds(2, 8)), return_exceptions=True),
            *await asyncio.gather(
                batcher.predict({"x": feeds(2, 8)["x"], "ids": np.array([0, 99])}),
                return_exceptions=True,
            ),
            *await asyncio.gather(batcher.predict(feeds(1, 8)), return_exceptions=True),
        ]
        serving.cancel()
        return found

    before, failed, after = asyncio.run(outcomes())
    assert isinstance(failed, Exception)
    assert "99" in str(failed)
    assert {len(next(iter(each.values()))) for each in (before, after)} == {1, 2}


@contextmanager
def served(model: Any) -> Iterator[str]:
    """The service on a free port, as an address."""
    server = uvicorn.Server(uvicorn.Config(service.application(model), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    (socket,) = server.servers[0].sockets
    try:
        yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def post(address: str, content: bytes) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"{address}/predict", content) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def body(arrays: dict[str, Any]) -> bytes:
    written: bytes = service.written({name: np.asarray(each) for name, each in arrays.items()})
    return written


def pickled() -> bytes:
    file = io.BytesIO()
    np.savez(file, x=np.array([print], dtype=object))
    return file.getvalue()


def test_http(address: str, model: Any) -> None:
    with urllib.request.urlopen(f"{address}/health") as answer:
        assert json.load(answer) == {"providers": ["CPUExecutionProvider"]}
    for rows in (1, 3):
        given = feeds(rows, 8)
        status, content = post(address, body(given))
        assert status == 200
        with np.load(io.BytesIO(content)) as got:
            assert_rows(model, given, dict(got))


def test_the_page_s_client(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs/deploy/python-service.md").read_text()
    (client,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for written, here in (
        ("http://127.0.0.1:8000", address),
        ("(3, 3, 224, 224), np.float32)", "(3, 3, 8, 8), np.float32), ids=np.zeros(3, np.int64)"),
    ):
        assert written in client
        client = client.replace(written, here)
    exec(compile(client, "client", "exec"), {})
    assert "(3, 24)" in capsys.readouterr().out


def packed(size: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bytes(size))
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an .npz file"),
        (b"PK\x03\x04 and no more", "not an .npz file"),
        (pickled(), "not an .npz file"),
        (packed(2**28 + 1), "more than 268435456 bytes"),
        (body({"x": feeds(1, 8)["x"]}), "the inputs are ['ids', 'x'], not ['x']"),
        (body(feeds(1, 8) | {"y": np.ones(1)}), "the inputs are ['ids', 'x']"),
        (body(feeds(1, 8) | {"ids": np.ones(1)}), "ids has type float64, not int64"),
        (body(feeds(1, 8) | {"x": np.array(["a"])}), "x has type <U1, not float32"),
        (body(feeds(1, 8) | {"x": np.ones((1, 4, 8, 8))}), "x has shape (1, 4, 8, 8)"),
        (body(feeds(1, 8) | {"x": np.ones(3)}), "x has shape (3,)"),
        (body(feeds(1, 8) | {"x": np.float32(3)}), "x has shape ()"),
        (body(feeds(0, 8)), "has shape (0"),
        (body(feeds(1, 8) | {"ids": np.array([1, 2])}), "different numbers of rows"),
    ],
)
def test_bad_requests_get_a_reason(address: str, content: bytes, message: str) -> None:
    status, answer = post(address, content)
    assert status == 400
    assert message in json.loads(answer)["error"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cpu"], "error: inputs ['x'] have open sizes"),
        (["--batches", "1,many"], "error: invalid literal"),
        (["--batches", "0,1", "--device", "cpu"], "a bucket of 0 rows"),
        (["--batches", "1", "--device", "cuda"], "does not run on a GPU here: give --device cpu"),
        (["--shape", "x:3xq"], "invalid shapes_of value"),
        (["--shape", "z:3", "--device", "cpu"], "error: the inputs are ['ids', 'x'], not ['z']"),
        (["--shape", "x:4x8x8,ids:", "--device", "cpu"], "error: x has shape (1, 4, 8, 8), not"),
        (["--shape", "x:3x8x8,ids:1", "--device", "cpu"], "error: ids has shape (1, 1), not ['N']"),
    ],
)
def test_wrong_arguments_end_in_a_message(
    path: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "cuda" in arguments and "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has the CUDA provider")
    with warnings.catch_warnings(action="ignore"), pytest.raises(SystemExit) as ended:
        service.main([path, *arguments])
    assert ended.value.code in (1, 2)
    assert message in capsys.readouterr().err


def test_shapes_are_those_of_rows() -> None:
    assert service.shapes_of("x:3x8x8,ids:") == SHAPES[0]
    assert service.shapes_of("a:b:4") == (("a:b", (4,)),)


def test_any_name_of_an_output_can_be_written() -> None:
    arrays = {name: np.arange(3) for name in ("file", "allow_pickle", "a/b", "x.npy")}
    assert {name: [*values] for name, values in service.read(service.written(arrays)).items()} == {
        name: [0, 1, 2] for name in arrays
    }


@pytest.mark.gpu
def test_graphs_answer_as_the_cpu_does(tmp_path: Path) -> None:
    path = optimized(tmp_path, net())
    model = service.Model(path, [1, 4], SHAPES, "cuda")
    cpu = service.Model(path, [1], SHAPES, "cpu")
    for seed, (rows, size) in enumerate(
        [(1, 8), (3, 8), (4, 16), (2, 16), (6, 8), (2, 12), (1, 8)]
    ):
        given = feeds(rows, size, seed)
        (got,), (wanted,) = model.run(given).values(), cpu.run(given).values()
        np.testing.assert_allclose(got, wanted, rtol=1e-2, atol=1e-2)
