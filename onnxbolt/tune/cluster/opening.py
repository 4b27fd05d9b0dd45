"""Opens the cluster that the options ask for. Dask is imported here alone, since it is an extra."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from onnxbolt.errors import InputError
from onnxbolt.options import Options
from onnxbolt.spelling import option
from onnxbolt.tune.cluster.compilers import Compilers, admit_compiler
from onnxbolt.tune.cluster.gpus import ClusterGpus, admit, machines_of
from onnxbolt.tune.cluster.pool import Messages, Pool
from onnxbolt.tune.cluster.standing_in import stand_ins


@contextlib.contextmanager
def cluster_gpus(
    uuids: Sequence[str], archs: Sequence[int], options: Options, messages: Messages
) -> Iterator[Callable[[], Sequence[ClusterGpus]]]:
    """Starts the GPUs of the cluster that `options` name, else those of this machine with these
    UUIDs. The result waits for them: an entry for each planned architecture. Both raise InputError
    if none can be used."""
    asked = option(
        *(("scheduler", options.scheduler) if options.scheduler else ("gpus", options.gpus))
    )
    try:
        from onnxbolt.tune.cluster.connecting import local_cluster, remote_cluster
    except ModuleNotFoundError as error:
        raise InputError(
            f"{asked} needs dask, which is not installed ({error}): pip install 'onnxbolt[cluster]'"
        ) from error
    with contextlib.ExitStack() as stack:
        here = [stack.enter_context(each) for each in stand_ins(uuids)]
        client = stack.enter_context(
            remote_cluster(options.scheduler, options.insecure)
            if options.scheduler
            else local_cluster(uuids)
        )
        pool = stack.enter_context(Pool(client, "GPU", admit, messages, here))
        compilers = stack.enter_context(Pool(client, "CPU", admit_compiler, messages))

        def started() -> list[ClusterGpus]:
            workers = pool.wait(max(len(uuids), 1))
            messages(f"{len(workers)} GPUs measure")
            return [
                ClusterGpus(pool, machine, Compilers(compilers))
                for machine in machines_of(workers, archs, messages)
            ]

        yield started
