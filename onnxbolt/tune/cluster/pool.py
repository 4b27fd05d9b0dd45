"""Gives the workers of a cluster their jobs, from a thread for each; workers may join, hang and die
at any time."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
import uuid
from asyncio import CancelledError
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxbolt import checks
from onnxbolt.errors import InputError, OnnxboltError
from onnxbolt.measurements.records import Machine
from onnxbolt.tune.cluster import tasks
from onnxbolt.tune.cluster.standing_in import StandIn

if TYPE_CHECKING:
    from distributed import Client

Messages = Callable[[str], None]
_LOOK = 0.5  # seconds between two looks at who is there, and at a job's deadline
_ASKING = 60.0  # seconds of a task that measures nothing, besides those for the GPU's lock
_ARRIVAL = 60.0  # seconds without a worker after which there is an error (stand-ins do not count)
_SETTLING = 10.0  # seconds for another worker to join while all are refused
_WORTH_MOVING = 2.0  # seconds that a job waits for its worker before an idle one takes it over
_ENDING = 10.0  # seconds that a stand-in's last job may take
_ATTEMPTS = 3  # times that a job may run on a worker that dies or hangs meanwhile


class _LostError(Exception):
    """The worker died, or left the cluster."""


class _HungError(Exception):
    """The worker does not answer in time."""


class RefusedError(Exception):
    """The worker is not used, for this reason."""


@dataclass(eq=False)
class Worker:
    """A worker that has joined; once it is admitted, with the machine that it measures on."""

    address: str
    name: str
    admitted: bool = False
    machine: Machine | None = None
    profiler: str = ""  # the digest of the profiler's library
    cudnn: int = 0
    running: Job | None = None
    gone: threading.Event = field(default_factory=threading.Event)
    libraries: set[str] = field(default_factory=set)  # digests of those that were sent
    stand_in: StandIn | None = None  # this process in the place of a worker

    def runs(self, subject: Hashable) -> bool:
        return self.running is not None and self.running.subject == subject


@dataclass(eq=False)
class Job:
    """Work for one worker, of a machine. `run` gets the worker, and whether jobs of this `subject`
    ran on another one before; its result, or OnnxboltError, goes to `outbox`."""

    subject: Hashable
    machine: Machine | None
    run: Callable[[Worker, bool], Any]
    outbox: queue.SimpleQueue[tuple[Job, Any, float]]
    away: bool = False  # in a process of a worker alone
    attempts: int = 0
    since: float = field(default_factory=time.monotonic)


class Pool:
    """The workers of a cluster that have `resource`. `admit` completes a worker that has joined, or
    raises RefusedError. A context manager, whose end lets all threads end."""

    def __init__(
        self,
        client: Client,
        resource: str,
        admit: Callable[[Pool, Worker, dict[str, Any]], None],
        messages: Messages,
        stand_ins: Collection[StandIn] = (),
    ) -> None:
        """Each of `stand_ins` does the jobs of a worker of its name until that one has joined."""
        self._client, self._resource, self._messages = client, resource, messages
        self._admit, self._stand_ins = admit, stand_ins
        self._threads: list[threading.Thread] = []  # those of stand-ins
        self._changed = threading.Condition()
        self._workers: dict[str, Worker] = {}
        self._refused: dict[str, str] = {}  # addresses of workers that are not used, and why
        self._digests: dict[tuple[Path, int, int], str] = {}  # digests of files
        self._homes: dict[Hashable, Worker] = {}
        self._waiting: list[Job] = []
        self._seen = time.monotonic()  # when there was a worker for the last time
        self._failure = ""
        self._closed = threading.Event()

    def __enter__(self) -> Pool:
        with self._changed:
            for stand_in in self._stand_ins:
                name = stand_in.name
                self._begin(Worker(f"here/{name}", name, stand_in=stand_in), 1)
        threading.Thread(target=self._watch, name="onnxbolt-cluster", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_ENDING)

    def submit(self, job: Job) -> None:
        with self._changed:
            self._waiting.append(job)
            self._changed.notify_all()

    def cancel(self, doomed: Collection[Job]) -> list[Job]:
        """Forget those of the jobs that have not begun, and return them."""
        with self._changed:
            cancelled = [job for job in self._waiting if job in doomed]
            self._waiting = [job for job in self._waiting if job not in doomed]
            return cancelled

    def admitted(self, machine: Machine | None) -> list[Worker]:
        """The workers of such a machine; None for workers that have no GPU."""
        with self._changed:
            everyone = self._workers.values()
            return [each for each in everyone if each.admitted and each.machine == machine]

    @property
    def empty(self) -> bool:
        """True if no worker has joined that may be used."""
        with self._changed:
            return not self._workers

    def wait(self, count: int) -> list[Worker]:
        """The workers, once `count` of them have joined, or those that have joined in time. Raises
        InputError if none can be used."""
        start = time.monotonic()
        with self._changed:
            while not self._failure:
                known = len(self._workers) + len(self._refused)
                patience = 0.0 if known >= count else _ARRIVAL
                if not self._workers and self._refused:  # others may be on their way
                    patience = _SETTLING
                asked = [worker for worker in self._workers.values() if not worker.admitted]
                if not asked and time.monotonic() > start + patience:
                    break
                self._changed.wait(_LOOK)
            if not self._workers:
                why = self._failure or "; ".join(self._refused.values()) or "none has joined"
                raise InputError(f"the cluster has no worker to measure on: {why}")
            return list(self._workers.values())

    def check(self) -> None:
        """Raises OnnxboltError if the cluster can do no more work."""
        with self._changed:
            if self._failure:
                raise OnnxboltError(self._failure)
            if not self._joined() and time.monotonic() > self._seen + _ARRIVAL:
                why = "; ".join(self._refused.values())
                raise OnnxboltError(
                    f"the cluster has had no worker for {_ARRIVAL:.0f} s; start one, and run this"
                    f" again: what was measured is kept{why and f' ({why})'}"
                )

    def ask(
        self, worker: Worker, task: tasks.Task, seconds: float, *data: bytes, **values: Any
    ) -> Any:
        """The reply of a task to JSON and data; for use in `Job.run`. Raises OnnxboltError for what
        the worker cannot do."""
        request = json.dumps(values).encode()
        return self._call(worker, task, seconds + tasks.LOCK_SECONDS, request, *data)

    def send(self, worker: Worker, library: Path) -> str:
        """The name of a library on the worker, to which it is sent unless the worker has it."""
        file = library.stat()
        content = library, file.st_ino, file.st_mtime_ns
        digest = self._digests.get(content, "")
        if digest not in worker.libraries:
            data = library.read_bytes()
            digest = self._digests[content] = tasks.digest_of(data)
            self._call(worker, tasks.store, _ASKING, digest, data)
            worker.libraries.add(digest)
        return digest

    def _call(self, worker: Worker, task: tasks.Task, seconds: float, *arguments: Any) -> Any:
        deadline = time.monotonic() + seconds
        future = self._client.submit(
            task,
            *arguments,
            key=f"{task.__name__}-{uuid.uuid4().hex}",
            workers=[worker.address],
            resources={self._resource: 1},
        )
        try:
            reply = tasks.read_reply(self._result(future, worker, deadline))
        finally:
            future.release()
        if "busy" in reply:
            raise tasks.BusyError(reply["busy"])
        if "failure" in reply:
            raise OnnxboltError(checks.text("failure", reply["failure"]))
        return reply

    def _result(self, future: Any, worker: Worker, deadline: float) -> bytes:
        while True:
            try:
                return bytes(future.result(timeout=_LOOK))
            except TimeoutError:
                if worker.gone.is_set():
                    raise _LostError("it has left the cluster") from None
                if time.monotonic() > deadline:
                    raise _HungError("it does not answer") from None
            except (CancelledError, Exception) as error:  # dask's, for a dead worker
                raise _LostError(f"{type(error).__name__}: {error}") from error

    # --- threads ----------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Notes who joins and who leaves."""
        while not self._closed.wait(_LOOK):
            try:
                found = self._client.scheduler_info(n_workers=-1)["workers"]
            except (CancelledError, Exception) as error:  # dask's own, and those of sockets
                if not self._closed.is_set():
                    with self._changed:
                        self._failure = f"the cluster's scheduler does not answer: {error}"
                        self._changed.notify_all()
                return
            here = {
                address: facts
                for address, facts in found.items()
                if self._resource in facts["resources"]
            }
            with self._changed:
                for address, facts in here.items():
                    if address not in self._workers and address not in self._refused:
                        self._join(Worker(address, str(facts["name"])), facts)
                for address in self._workers.keys() - here.keys():
                    if self._workers[address].stand_in is None:
                        self._leave(self._workers[address])
                if self._joined():
                    self._seen = time.monotonic()
                self._changed.notify_all()

    def _joined(self) -> bool:
        """True if a worker has joined that may be used: some jobs are not for stand-ins. The caller
        holds the lock."""
        return any(worker.stand_in is None for worker in self._workers.values())

    def _join(self, worker: Worker, facts: dict[str, Any]) -> None:
        slots = int(facts["resources"][self._resource])
        if facts["nthreads"] != slots:
            self._leave(worker, f"start it with --nthreads {slots}, as many as {self._resource}")
            return
        self._begin(worker, slots)

    def _begin(self, worker: Worker, slots: int) -> None:
        self._workers[worker.address] = worker
        name = f"onnxbolt-{worker.name}"
        thread = threading.Thread(target=self._serve, args=(worker, slots), name=name, daemon=True)
        if worker.stand_in is not None:
            self._threads.append(thread)
        thread.start()

    def _leave(self, worker: Worker, refused: str = "") -> None:
        """The worker gets no more jobs. The caller holds the lock."""
        worker.gone.set()
        if self._workers.get(worker.address) is worker:  # else another one has joined there since
            del self._workers[worker.address]
        if refused:
            self._refused[worker.address] = f"{worker.name}: {refused}"
            self._messages(f"the worker {worker.name} is not used: {refused}")
        self._changed.notify_all()

    def _serve(self, worker: Worker, slots: int) -> None:
        """Runs jobs on a worker as long as both are there."""
        if worker.stand_in is not None:
            with worker.stand_in:
                self._serve_admitted(worker, slots, self._admit_stand_in)
        else:
            self._serve_admitted(worker, slots, self._admit_worker)

    def _admit_stand_in(self, worker: Worker) -> None:
        assert worker.stand_in is not None
        worker.machine = worker.stand_in.machine

    def _admit_worker(self, worker: Worker) -> None:
        reply = self._call(worker, tasks.hello, _ASKING)
        self._check_versions(reply["versions"])
        self._relieve(worker)
        self._admit(self, worker, reply)

    def _relieve(self, worker: Worker) -> None:
        """Let a worker have the GPU and the subjects of its stand-in, if there is one."""
        with self._changed:
            for other in list(self._workers.values()):
                if other.stand_in is not None and other.name == worker.name:
                    self._leave(other)
                    while other.running is not None:
                        self._changed.wait(_LOOK)
                    self._homes.update(
                        (subject, worker) for subject, home in self._homes.items() if home is other
                    )

    def _serve_admitted(self, worker: Worker, slots: int, admit: Callable[[Worker], None]) -> None:
        try:
            admit(worker)
            with self._changed:
                worker.admitted = True
                self._changed.notify_all()
            for _ in range(slots - 1):
                threading.Thread(target=self._jobs, args=(worker,), daemon=True).start()
        except (_LostError, _HungError) as error:
            self._give_up(worker, error)
            return
        except Exception as error:  # a thread that ended would let `wait` never return
            with self._changed:
                self._leave(worker, str(error))
            return
        self._jobs(worker)

    def _jobs(self, worker: Worker) -> None:
        while (taken := self._take(worker)) is not None:
            job, moved = taken
            start, outcome = time.monotonic(), None
            try:
                outcome = job.run(worker, moved)
            except (OnnxboltError, OSError) as error:
                outcome = OnnxboltError(str(error))
            except tasks.BusyError:
                self._again(worker, job)
                continue
            except (_LostError, _HungError) as error:
                self._again(worker, job, error)
                self._give_up(worker, error)
                return
            except Exception as error:  # a thread that ended would keep the job for good
                self._again(worker, job, error)
                with self._changed:
                    self._leave(worker, f"its reply is not one that onnxbolt makes ({error})")
                return
            with self._changed:
                worker.running = None
                self._changed.notify_all()
            job.outbox.put((job, outcome, time.monotonic() - start))

    def _take(self, worker: Worker) -> tuple[Job, bool] | None:
        """The worker's next job, and whether its subject comes from another worker; None if there
        will be none."""
        with self._changed:
            while not self._closed.is_set() and not worker.gone.is_set():
                if (job := self._next(worker)) is not None:
                    self._waiting.remove(job)
                    worker.running = job
                    home, self._homes[job.subject] = self._homes.get(job.subject), worker
                    return job, home not in (None, worker)
                self._changed.wait(_LOOK)
            return None

    def _next(self, worker: Worker) -> Job | None:
        """The job that this worker runs next."""
        ranked = [
            (rank, job.since, number, job)
            for number, job in enumerate(self._waiting)
            if job.machine == worker.machine
            and not (job.away and worker.stand_in)
            and (rank := self._rank(worker, job)) is not None
        ]
        return min(ranked)[-1] if ranked else None

    def _rank(self, worker: Worker, job: Job) -> int | None:
        """0 for a subject that is at home on this worker, 1 for one without a home, 2 for one that
        has waited while its home was busy with another; else None."""
        home = self._homes.get(job.subject)
        if home is worker:
            return 0
        if home is None or home.gone.is_set():
            return 1
        late = time.monotonic() - job.since > _WORTH_MOVING
        return 2 if late and not home.runs(job.subject) else None

    def _again(self, worker: Worker, job: Job, why: Exception | None = None) -> None:
        """Let a job run once more, unless it has cost too many workers."""
        with self._changed:
            worker.running = None
            job.attempts += why is not None
            if job.attempts < _ATTEMPTS:
                self._waiting.append(job)
                self._changed.notify_all()
                return
        error = OnnxboltError(f"{_ATTEMPTS} workers did not survive it, the last one: {why}")
        job.outbox.put((job, error, 0.0))

    def _give_up(self, worker: Worker, why: Exception) -> None:
        """Have a worker that hangs started again; it joins as a new one."""
        with self._changed:
            if self._closed.is_set():
                return
            self._messages(f"the worker {worker.name} is lost: {why}")
            self._leave(worker)
            if isinstance(why, _HungError):
                self._refused[worker.address] = f"{worker.name}: {why}"
        if isinstance(why, _HungError):
            with contextlib.suppress(CancelledError, Exception):  # it may have no nanny, or be dead
                self._client.restart_workers([worker.address], timeout=30, raise_for_error=False)

    @staticmethod
    def _check_versions(theirs: Any) -> None:
        for what, ours in tasks.versions().items():
            if theirs[what] != ours:
                raise RefusedError(f"its {what} is {theirs[what]!s:.40}, and ours {ours:.40}")
