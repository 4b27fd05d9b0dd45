"""Replies of workers that no worker of onnxbolt makes, without a cluster."""

from __future__ import annotations

import json
import queue
import threading
from pathlib import Path
from typing import Any

import pytest

from onnxbolt.errors import InputError, OnnxboltError
from onnxbolt.tune.cluster import pool, tasks
from onnxbolt.tune.cluster.pool import Job, Pool, Worker

HERE = "tcp://127.0.0.1:1"


class Future:
    """The reply of a worker."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply

    def result(self, timeout: float) -> bytes:
        return self._reply

    def release(self) -> None:
        pass


class Client:
    """Dask's client of a scheduler with one worker; `replies` are those to each task's name."""

    def __init__(self, replies: dict[str, bytes]) -> None:
        self._replies = replies

    def scheduler_info(self, n_workers: int) -> dict[str, Any]:
        return {"workers": {HERE: {"name": "liar", "nthreads": 1, "resources": {"GPU": 1.0}}}}

    def submit(self, task: tasks.Task, *_: object, **__: object) -> Future:
        return Future(self._replies[task.__name__])


def opened(replies: dict[str, bytes]) -> Pool:
    return Pool(Client(replies), "GPU", lambda *_: None, lambda _: None)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_LOOK", 0.01)
    monkeypatch.setattr(pool, "_SETTLING", 0.05)


@pytest.mark.parametrize("reply", [b"null", b"[]", b'{"versions": null}', b"[" * 100_000, b"\xff"])
def test_a_worker_whose_first_reply_is_wrong_is_refused(reply: bytes) -> None:
    found = queue.SimpleQueue[Exception]()

    def wait() -> None:
        with opened({"hello": reply}) as workers, pytest.raises(InputError) as caught:
            workers.wait(1)
        found.put(caught.value)

    threading.Thread(target=wait, daemon=True).start()
    assert "no worker to measure on: liar: " in str(found.get(timeout=60))


@pytest.mark.parametrize("reply", [b"null", b"1", b"[" * 100_000])
def test_a_job_whose_reply_is_wrong_ends(reply: bytes) -> None:
    hello = json.dumps({"versions": tasks.versions()}).encode()
    outbox = queue.SimpleQueue[tuple[Job, Any, float]]()
    with opened({"hello": hello, "measure": reply}) as workers:
        (worker,) = workers.wait(1)
        job = Job("any", None, lambda w, _: workers.ask(w, tasks.measure, 1.0), outbox, attempts=2)
        workers.submit(job)
        _, outcome, _ = outbox.get(timeout=60)
    assert isinstance(outcome, OnnxboltError)
    assert worker.gone.wait(60)


def test_a_library_is_read_once_for_each_worker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library, reads, read_bytes = tmp_path / "kernel.so", [], Path.read_bytes
    library.write_bytes(b"kernel")

    def reading(path: Path) -> bytes:
        reads.append(path)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", reading)
    workers = opened({"store": b"{}\n"})
    first, second = Worker(HERE, "first"), Worker(HERE, "second")
    digests = {workers.send(each, library) for each in (first, first, second, second)}
    assert digests == {tasks.digest_of(b"kernel")}
    assert len(reads) == 2
    library.write_bytes(b"another kernel")
    assert workers.send(first, library) == tasks.digest_of(b"another kernel")


def test_a_worker_that_is_lost_takes_none_that_has_joined_at_its_address_along() -> None:
    hello = json.dumps({"versions": tasks.versions()}).encode()
    with opened({"hello": hello}) as workers:
        (worker,) = workers.wait(1)
        workers._give_up(Worker(HERE, "earlier"), pool._LostError("it has left the cluster"))
        assert workers.wait(1) == [worker]
        assert not worker.gone.is_set()
