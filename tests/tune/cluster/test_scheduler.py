"""A cluster that others have started: its address, the workers that it may have, and the end."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxbolt import pipeline
from onnxbolt.errors import InputError
from onnxbolt.options import Options
from onnxbolt.tune.cluster import pool
from onnxbolt.tune.cluster.opening import cluster_gpus
from onnxbolt.tune.tuner import tune
from tests.tune.cluster.conftest import ROOT, Cluster, running, scheduler
from tests.tune.cluster.test_measuring import TASKS, is_right
from tests.tune.fakes import Records
from tests.tune.local_gpu import net


def worker(
    address: str, folder: Path, name: str, *options: str, **environment: str
) -> contextlib.ExitStack:
    """A worker with a GPU of this name, started by dask's own command."""
    connecting = pytest.importorskip("onnxbolt.tune.cluster.connecting")
    command = connecting.worker_command(address, name, "GPU=1", folder / name, *options)
    stack = contextlib.ExitStack()
    stack.enter_context(running(command, CUDA_VISIBLE_DEVICES=name, **environment))
    return stack


@pytest.mark.parametrize(
    ("address", "insecure", "why"),
    [
        ("tcp://10.0.0.1:8786", False, "without TLS, whoever is on the network can run code"),
        ("tcp://gpu-host:8786", False, "without TLS"),
        ("gpu-host:8786", False, "write it as tls://host:8786"),
        ("http://gpu-host:8786", True, "write it as tls://host:8786"),
        ("tls://gpu-host", False, "write it as tls://host:8786"),
        ("tls://gpu-host:many", False, "write it as tls://host:8786"),
    ],
)
def test_addresses_that_are_refused(address: str, insecure: bool, why: str) -> None:
    connecting = pytest.importorskip("onnxbolt.tune.cluster.connecting")
    with pytest.raises(InputError, match=why):
        connecting.check_address(address, insecure)


@pytest.mark.parametrize(
    ("address", "insecure"),
    [
        ("tls://gpu-host:8786", False),
        ("tcp://127.0.0.1:8786", False),
        ("tcp://[::1]:8786", False),
        ("tcp://localhost:8786", False),
        ("tcp://gpu-host:8786", True),
    ],
)
def test_addresses_that_are_accepted(address: str, insecure: bool) -> None:
    connecting = pytest.importorskip("onnxbolt.tune.cluster.connecting")
    connecting.check_address(address, insecure)


def test_where_no_scheduler_answers_the_error_says_so(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxbolt.tune.cluster.connecting._CONNECTING", 0.5)
    with pytest.raises(InputError, match="no scheduler answers there"):
        pipeline.tune(net(), scheduler="tcp://127.0.0.1:1")


def test_workers_join_and_foreign_ones_are_refused(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker of other sources and one that fits; a third one comes in the middle."""
    monkeypatch.setattr(pool, "_SETTLING", 120.0)  # the one that fits may take long to start
    said: list[str] = []
    records = Records()
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(scheduler(tmp_path))
        foreign = {"digest of sources": "0123456789"}
        stack.enter_context(
            worker(address, tmp_path, "GPU-foreign", FAKE_VERSIONS=json.dumps(foreign))
        )
        stack.enter_context(worker(address, tmp_path, "GPU-first", FAKE_SECONDS="0.5"))
        options = Options(tune=True, scheduler=address)
        (gpus,) = stack.enter_context(cluster_gpus((), [90], options, said.append))()

        def join() -> None:
            while not cluster.measured:
                time.sleep(0.1)
            stack.enter_context(worker(address, tmp_path, "GPU-second"))

        thread = threading.Thread(target=join)
        thread.start()
        timings, tuning = tune(TASKS, records, gpus, cluster.build, gpus.machine)
        thread.join()
    assert tuning.ended_by == "done"
    assert is_right(timings, records)
    assert "GPU-foreign" not in {line["gpu"] for line in cluster.measured}
    refusal = next(line for line in said if "GPU-foreign" in line)
    assert refusal.startswith(
        "the worker GPU-foreign is not used: its digest of sources is 0123456789, and ours "
    )


def test_where_all_workers_are_foreign_the_error_says_why(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_SETTLING", 1.0)
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(scheduler(tmp_path))
        foreign = {"Python": "2.7.18", "ONNX Runtime": "0.1"}
        stack.enter_context(worker(address, tmp_path, "GPU-old", FAKE_VERSIONS=json.dumps(foreign)))
        with pytest.raises(InputError, match=r"GPU-old: its Python is 2\.7\.18, and ours 3"):
            pipeline.tune(net(), scheduler=address)


def test_the_same_database_gives_the_same_plan(cluster: Cluster) -> None:
    tuned = pipeline.optimize(net(), library=False, verify=False, tune=True, gpus="all")
    assert tuned.tuning is not None
    assert tuned.tuning.trials
    sent = len(cluster.measured)
    again = pipeline.optimize(net(), library=False, verify=False, tune=True, gpus="all")
    assert len(cluster.measured) == sent
    assert again.fused == tuned.fused


def test_an_interrupt_keeps_the_best_so_far_and_leaves_no_process(tmp_path: Path) -> None:
    psutil = pytest.importorskip("psutil")
    onnx.save(net(), tmp_path / "net.onnx")
    command = [sys.executable, "-m", "tests.tune.cluster.run", str(tmp_path)]
    process = subprocess.Popen(
        [*command, "tune", str(tmp_path / "net.onnx"), "--gpus", "all", "--log-format", "json"],
        cwd=ROOT,
        env={**os.environ, "FAKE_SECONDS": "3"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # a shell ignores interrupts in what it starts in the background
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    done = Cluster(tmp_path / "fake")
    # with two GPUs, a third request comes only when one has answered
    while len(done.measured) < 3 and process.poll() is None:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, err = process.communicate()
    assert process.returncode == 130, err
    result = json.loads(out.splitlines()[-1])
    assert result["ended_by"] == "interrupt"
    assert result["tasks"]
    left = [
        each.cmdline()
        for each in psutil.process_iter()
        if each.pid != os.getpid() and str(tmp_path) in " ".join(_of(each))
    ]
    assert left == []


def _of(process: Any) -> list[str]:
    """Texts that name the folder of the test that a process belongs to."""
    try:
        return [*process.cmdline(), process.environ().get("FAKE_GPU", "")]
    except Exception:  # it has ended, or is another user's
        return []


def test_tls(cluster: Cluster, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificates, is not installed")
    dask = pytest.importorskip("dask")
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=dask", "-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    tls = ("--tls-ca-file", certificate, "--tls-cert", certificate, "--tls-key", key)
    ours = {"ca-file": certificate, "client.cert": certificate, "client.key": key}
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(scheduler(tmp_path, "--protocol", "tls", *tls))
        stack.enter_context(worker(address, tmp_path, "GPU-tls", *tls))
        assert address.startswith("tls://")
        with pytest.raises(InputError, match="no scheduler answers there"):
            pipeline.tune(net(), scheduler=address)  # without a certificate
        with dask.config.set({f"distributed.comm.tls.{name}": at for name, at in ours.items()}):
            assert pipeline.tune(net(), scheduler=address).ended_by == "done"
    assert {line["gpu"] for line in cluster.measured} == {"GPU-tls"}
