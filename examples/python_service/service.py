"""Serves an optimized model over HTTP, with a CUDA graph for each bucket of shapes.

    pip install starlette uvicorn
    python examples/python_service/service.py fast.onnx --batches 1,2,4,8,16 --shape x:3x224x224

POST /predict takes the inputs as an .npz file, the first dimension of each being the number of
rows, and answers with the outputs as an .npz file. docs/deploy/python-service.md explains it.

Requests that arrive while the GPU is busy run together: `Batcher` joins their rows, `Model` copies
them into the smallest bucket that holds them, and replays that bucket's graph. On the CPU all is
the same, except that a run is a run and not a replay. So it is for models of which no run can be
captured, such as detectors whose data decide how many boxes there are.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import warnings
import zipfile
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import numpy as np
import onnxruntime as ort
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import onnxbolt

Arrays = dict[str, np.ndarray]
RowShapes = tuple[tuple[str, tuple[int, ...]], ...]  # by input, without the number of rows

NO_GRAPH = -1
MOST_BYTES = 2**28  # a request's arrays may have so many
NUMPY = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
    "tensor(uint8)": np.uint8,
}


class BadRequestError(ValueError):
    """Inputs that the model does not take; the text goes to the client."""


class Bucket:
    """One shape of all inputs: memory at fixed addresses, and the number of its CUDA graph.

    Without one (NO_GRAPH), outputs are as large as each run makes them.
    """

    def __init__(
        self, session: ort.InferenceSession, device: str, rows: int, shapes: RowShapes, graph: int
    ) -> None:
        self.rows, self._session, self._device = rows, session, device
        self._binding = session.io_binding()
        self._fixed: list[ort.OrtValue] = []  # outputs; the binding does not keep their memory
        self._names = [value.name for value in session.get_outputs()]
        types = {value.name: NUMPY[value.type] for value in session.get_inputs()}
        self._host: Arrays = {name: np.zeros((rows, *shape), types[name]) for name, shape in shapes}
        self._inputs = {name: self._tensor(values) for name, values in self._host.items()}
        for name, value in self._inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        self._options = self._run_options(NO_GRAPH)
        self._run()
        found = self._outputs()
        if graph != NO_GRAPH:
            self._fixed = [self._tensor(values.copy()) for values in found.values()]
            for name, value in zip(self._names, self._fixed, strict=True):
                self._binding.bind_ortvalue_output(name, value)
            self._options = self._run_options(graph)
            self._run()  # captures the graph

    def run(self, feeds: Arrays) -> Arrays:
        """The outputs of `feeds`, whose rows fill the bucket in part or in whole.

        Rows that they do not fill are computed as earlier requests left them, and dropped.
        """
        count = len(next(iter(feeds.values())))
        for name, values in feeds.items():
            self._host[name][:count] = values
            self._inputs[name].update_inplace(self._host[name])
        self._run()
        # a copy: on the CPU these are the memory that the next run writes to
        return {name: values[:count].copy() for name, values in self._outputs().items()}

    def _run(self) -> None:
        if not self._fixed:  # each run gets new memory, of the size that it needs
            for name in self._names:
                self._binding.bind_output(name, self._device, 0)
        self._session.run_with_iobinding(self._binding, self._options)

    def _outputs(self) -> Arrays:
        """The outputs of the last run. Raises ValueError unless they have the bucket's rows."""
        values = (value.numpy() for value in self._binding.get_outputs())
        found = dict(zip(self._names, values, strict=True))
        for name, output in found.items():
            if output.shape[:1] != (self.rows,):
                raise ValueError(
                    f"output {name} has shape {[*output.shape]} for {self.rows} rows: only models"
                    " whose outputs have a row for each row of the inputs can be batched"
                )
        return found

    def _tensor(self, values: np.ndarray) -> ort.OrtValue:
        return ort.OrtValue.ortvalue_from_numpy(values, self._device, 0)

    def _run_options(self, graph: int) -> ort.RunOptions:
        options = ort.RunOptions()
        if self._device == "cuda":
            options.add_run_config_entry("gpu_graph_id", str(graph))
        return options


class Model:
    """A session and its buckets: each number of rows in `batches` with each of `shapes`.

    If the model has a fixed number of rows, that is the only one. `device` is "cuda" or "cpu". One
    thread at a time may call `run`, since a bucket's memory is that of all its runs. Raises
    ValueError for models that do not work row by row, and for shapes that the model does not take.
    """

    def __init__(
        self,
        path: str,
        batches: Sequence[int],
        shapes: Sequence[RowShapes] = (),
        device: str = "cpu",
        graphs: bool = True,
    ) -> None:
        if graphs and (reason := onnxbolt.cuda_graph_obstacle(path)):
            warnings.warn(f"no CUDA graphs, since {reason}", stacklevel=2)
            graphs = False
        cuda = onnxbolt.cuda_provider(path, enable_cuda_graph=graphs)
        providers = [cuda] if device == "cuda" else ["CPUExecutionProvider"]
        options = onnxbolt.session_options(path, providers=providers)
        self.session = ort.InferenceSession(path, options, providers=providers)
        if device == "cuda" and cuda[0] not in self.session.get_providers():
            raise ValueError("this ONNX Runtime does not run on a GPU here: give --device cpu")
        self.inputs = {value.name: value for value in self.session.get_inputs()}
        for name, value in self.inputs.items():
            if value.type not in NUMPY or not value.shape:
                raise ValueError(
                    f"input {name}, {value.type} {value.shape}, has no rows of numbers"
                )
        fixed = {
            value.shape[0] for value in self.inputs.values() if isinstance(value.shape[0], int)
        }
        self.batches = sorted(fixed or set(batches))
        if self.batches[0] < 1:
            raise ValueError(f"a bucket of {self.batches[0]} rows: give numbers of at least 1")
        for rows in shapes:
            self.checked({name: np.zeros((self.batches[0], *shape), bool) for name, shape in rows})
        self._buckets: dict[tuple[RowShapes, int], Bucket] = {}
        for rows in shapes or [self._fixed_shapes()]:
            for batch in self.batches:
                graph = len(self._buckets) + 1 if graphs else NO_GRAPH
                self._buckets[rows, batch] = Bucket(self.session, device, batch, rows, graph)
        self._no_graph = ort.RunOptions()
        if device == "cuda":
            self._no_graph.add_run_config_entry("gpu_graph_id", str(NO_GRAPH))

    def run(self, feeds: Arrays) -> Arrays:
        """The outputs of any number of rows; more than the largest bucket holds are divided."""
        count, most = len(next(iter(feeds.values()))), self.batches[-1]
        parts = [
            self._run_part({name: values[at : at + most] for name, values in feeds.items()})
            for at in range(0, count, most)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _run_part(self, feeds: Arrays) -> Arrays:
        count = len(next(iter(feeds.values())))
        batch = next(batch for batch in self.batches if batch >= count)
        if (bucket := self._buckets.get((row_shapes(feeds), batch))) is not None:
            return bucket.run(feeds)
        # a shape without a bucket runs as it is, without a graph
        names = [value.name for value in self.session.get_outputs()]
        return dict(zip(names, self.session.run(names, feeds, self._no_graph), strict=True))

    def checked(self, given: Arrays) -> Arrays:
        """The inputs of a request in the model's types. Raises BadRequestError for others."""
        if set(given) != set(self.inputs):
            raise BadRequestError(f"the inputs are {sorted(self.inputs)}, not {sorted(given)}")
        feeds: Arrays = {}
        for name, value in self.inputs.items():
            values, wanted = given[name], NUMPY[value.type]
            if not np.can_cast(values.dtype, wanted, "same_kind"):
                raise BadRequestError(f"{name} has type {values.dtype}, not {np.dtype(wanted)}")
            fits = len(values.shape) == len(value.shape) and all(
                not isinstance(size, int) or size == got
                for size, got in zip(value.shape[1:], values.shape[1:], strict=True)
            )
            if not fits or not values.size:
                raise BadRequestError(f"{name} has shape {values.shape}, not {value.shape}")
            feeds[name] = values.astype(wanted, copy=False)
        if len({len(values) for values in feeds.values()}) > 1:
            raise BadRequestError("the inputs have different numbers of rows")
        return feeds

    def _fixed_shapes(self) -> RowShapes:
        shapes = [(name, tuple(value.shape[1:])) for name, value in self.inputs.items()]
        if opened := [name for name, shape in shapes if not all(isinstance(n, int) for n in shape)]:
            raise ValueError(f"inputs {opened} have open sizes: give shapes for their buckets")
        return tuple(sorted(shapes))


def row_shapes(feeds: Arrays) -> RowShapes:
    """The shapes of inputs without the number of rows."""
    return tuple(sorted((name, values.shape[1:]) for name, values in feeds.items()))


class Batcher:
    """Joins requests of equal row shapes that wait while the model runs.

    The model runs in a thread of its own; a request that finds it idle runs at once.
    """

    def __init__(self, model: Model) -> None:
        self._model, self._queue = model, asyncio.Queue[tuple[Arrays, asyncio.Future[Arrays]]]()
        self._thread = ThreadPoolExecutor(max_workers=1)

    async def predict(self, feeds: Arrays) -> Arrays:
        """The outputs of one request."""
        answer: asyncio.Future[Arrays] = asyncio.get_running_loop().create_future()
        await self._queue.put((feeds, answer))
        return await answer

    async def serve(self) -> None:
        """Run requests until cancelled."""
        while True:
            waiting = [await self._queue.get()]
            while not self._queue.empty():
                waiting.append(self._queue.get_nowait())
            groups: dict[object, list[tuple[Arrays, asyncio.Future[Arrays]]]] = {}
            for at, request in enumerate(waiting):
                # buckets of one row gain nothing by it, and their outputs may differ in size
                joined = row_shapes(request[0]) if self._model.batches[-1] > 1 else at
                groups.setdefault(joined, []).append(request)
            for group in groups.values():
                await self._answer(group)

    async def _answer(self, group: list[tuple[Arrays, asyncio.Future[Arrays]]]) -> None:
        joined = {name: np.concatenate([feeds[name] for feeds, _ in group]) for name in group[0][0]}
        loop, start = asyncio.get_running_loop(), 0
        try:
            outputs = await loop.run_in_executor(self._thread, self._model.run, joined)
        except Exception as error:  # the next requests may well succeed
            for _, answer in group:
                if not answer.done():
                    answer.set_exception(error)
            return
        for feeds, answer in group:
            end = start + len(next(iter(feeds.values())))
            if not answer.done():  # its client may have gone
                answer.set_result({name: values[start:end] for name, values in outputs.items()})
            start = end


def application(model: Model) -> Starlette:
    """POST /predict and GET /health."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.batcher = Batcher(model)
        serving = asyncio.create_task(app.state.batcher.serve())
        yield
        serving.cancel()

    async def predict(request: Request) -> Response:
        body = await request.body()
        try:
            feeds = model.checked(await run_in_threadpool(read, body))
        except BadRequestError as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        outputs = await request.app.state.batcher.predict(feeds)
        return Response(await run_in_threadpool(written, outputs), media_type="application/x-npz")

    async def health(request: Request) -> JSONResponse:
        return JSONResponse({"providers": model.session.get_providers()})

    routes = [Route("/predict", predict, methods=["POST"]), Route("/health", health)]
    return Starlette(routes=routes, lifespan=lifespan)


def read(body: bytes) -> Arrays:
    """The arrays of an .npz file, none of them pickled. Raises BadRequestError for other bytes, and
    for more than MOST_BYTES when unpacked."""
    try:
        with np.load(io.BytesIO(body), allow_pickle=False) as file:
            if sum(entry.file_size for entry in file.zip.infolist()) > MOST_BYTES:
                raise ValueError(f"it has more than {MOST_BYTES} bytes")
            return {name: file[name] for name in file}
    except Exception as error:  # zipfile's and numpy's errors for bad bytes are of many types
        raise BadRequestError(f"the body is not an .npz file: {error}") from error


def written(arrays: Arrays) -> bytes:
    """The arrays as an .npz file; np.savez cannot write every name."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, values in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, values, allow_pickle=False)
    return file.getvalue()


def shapes_of(text: str) -> RowShapes:
    """`x:3x224x224,ids:128` as row shapes; `ids:` has one number in each row."""
    parts = [part.rpartition(":") for part in text.split(",")]
    return tuple(
        sorted(
            (name, tuple(int(size) for size in shape.split("x")) if shape else ())
            for name, _, shape in parts
        )
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", metavar="MODEL.onnx")
    parser.add_argument("--batches", default="1,2,4,8,16", help="rows of the buckets")
    parser.add_argument(
        "--shape",
        action="append",
        type=shapes_of,
        default=[],
        metavar="x:3x224x224,..",
        help="shapes of the inputs' rows; several: buckets for each. Not needed for fixed shapes",
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--no-graphs", action="store_true", help="buckets without CUDA graphs")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    chosen = parser.parse_args(arguments)
    try:
        batches = [int(batch) for batch in chosen.batches.split(",")]
        model = Model(chosen.model, batches, chosen.shape, chosen.device, not chosen.no_graphs)
    except (ValueError, onnxbolt.OnnxboltError) as error:
        parser.exit(1, f"error: {error}\n")
    uvicorn.run(application(model), host=chosen.host, port=chosen.port)


if __name__ == "__main__":
    main()
