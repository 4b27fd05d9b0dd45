"""Writes every result file at one commit: runs the tasks of TASKS, one process per GPU at a time,
in several calls if time is short.

    # all tasks, into results/; then plots and tables (`make bench`)
    python -m benchmarks.all
    # the tasks that fit; a later call goes on from DIR or the bundle
    python -m benchmarks.all --minutes 9 --into DIR --bundle DIR/part.zip
    python -m benchmarks.all --resume part.zip --minutes 9 --into DIR --bundle DIR/part.zip
    # result files into results/, after checking them; then plots and tables
    python -m benchmarks.all --install part.zip
    python -m benchmarks.all --list

Tasks stand in the order of their worth: those that README quotes first; --only has an order of its
own. A task that cannot end in
the time that is left is not begun. The commit is the checkout's; on a machine without the history
ONNXBOLT_COMMIT names it, and --install compares the digest of the measured sources with that
commit's. Rows of another commit are never kept: a call at a new commit begins anew.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks import documents, machine, plots, tables
from benchmarks.documents import DIRECTORY, RESULTS
from benchmarks.exports import AUTOGTCO
from onnxbolt.errors import InputError, OnnxboltError
from onnxbolt.options import cache_directory

# lines of a command that no log keeps: each task of the tuner, and what cuDNN refuses, by the
# thousands where ONNX Runtime searches for algorithms
_NOISE = re.compile(
    r'^\[Task|Warning: CUDNN_STATUS_NOT_SUPPORTED|\{"engineId"|running in Fallback mode'
)
STATE = "done.json"  # beside the result files: the tasks that ended well
_LEAST_SHARE = 0.6  # share of a task's expected seconds: with less time left it is not begun
_GRACE = 10.0  # seconds before the end at which what still runs is ended


@dataclass(frozen=True)
class Task:
    """A benchmark's command, and roughly how many seconds it takes on 16 cores."""

    benchmark: str
    seconds: float
    arguments: str = ""

    @property
    def name(self) -> str:
        return f"{self.benchmark} {self.arguments}".strip()

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", f"benchmarks.{self.benchmark}", *shlex.split(self.arguments)]


def _model(models: str, seconds: float, budget: int, compile_within: int, more: str = "") -> Task:
    return Task(
        "end_to_end",
        seconds,
        f"--models {models} --tune --budget {budget}s --compile-within {compile_within}s"
        f" {more}--append",
    )


def _exported(model: str, seconds: float, budget: int, more: str = "") -> Task:
    """With reduce-overhead alone: max-autotune takes minutes for each of these models. The forms of
    export are compared for one model of each kind; `more` is --plain for the others."""
    options = f"--tune --budget {budget}s --compile-within 60s --quick-compile --append"
    return Task("transformers", seconds, f"{more}--models {model} {options}")


TASKS = (
    _model("resnet50-32", 230, 50, 150),
    _model("vgg16-32", 220, 40, 150),
    _model("bert_base-32", 180, 20, 45),
    _model("vit_b16-32", 210, 25, 45),
    Task("conv", 50, "--budget 25s --append"),  # many of its kernels are known by now
    Task("gemm", 60, "--trials 14 --budget 35s --append"),
    _model("mobilenet_v3_large-32", 240, 40, 150),
    _model("repvgg_a0_deploy-32", 190, 25, 150),
    *(
        _model(model, 85, budget, 30)
        for model, budget in (
            ("dlrm_mlp", 8),
            ("dlrm_bottom", 12),
            ("dlrm_top", 12),
            ("dcn_v2", 12),
        )
    ),
    # max-autotune takes minutes at batch 1, too: these rows have reduce-overhead, and say so
    *(
        _model(f"{model}-1", 80, budget, 40, "--quick-compile ")
        for model, budget in (
            ("resnet50", 16),
            ("vgg16", 12),
            ("repvgg_a0_deploy", 10),
            ("mobilenet_v3_large", 25),
        )
    ),
    _model("vit_b16-1", 180, 25, 45),
    *(
        _exported(model, seconds, budget, forms)
        for model, seconds, budget, forms in (
            ("vit_base-32", 150, 45, ""),
            ("bert_base-32x40", 140, 45, ""),
            ("swin_tiny-32", 150, 45, ""),
            ("vit_base-1", 100, 45, "--plain "),
            ("convnext_tiny-32", 110, 45, "--plain "),
            ("segformer_b0-4", 110, 45, "--plain "),
            ("gpt2-4x1024", 110, 45, "--plain "),
            ("whisper_small_encoder-4", 110, 45, "--plain "),
            ("detr_r50_e6-1", 120, 45, "--plain "),
            ("setr_naive-1", 110, 45, "--plain "),
            ("bert_large-32x512", 260, 45, "--plain "),
        )
    ),
    Task("norms", 120, "--append"),
    Task("conv_transpose", 90, "--append"),
    Task("conv3d", 90, "--append"),
    Task("quantized", 240, "--trials 14 --budget 150s --append"),
    *(
        Task("quantized_models", seconds, f"{name} --tune --budget {budget}s --append")
        for name, budget, seconds in (
            ("resnet50-32", 120, 200),
            ("mobilenet_v3_large-32", 120, 250),
            ("vit_b16-32", 60, 150),
            ("bert_large-32", 60, 320),
        )
    ),
    *(
        Task("quantized_models", 300, f"{name}-32-auto --tune --budget 120s --append")
        for name in ("resnet50", "mobilenet_v3_large", "vit_b16")
    ),
    Task("nnunet", 240, "--tune --budget 60s --append"),
    Task("b2b_gemm", 60, "--trials 16 --budget 32s --append"),
    Task("epilogue", 65, "--trials 14 --budget 40s --append"),
    Task("b2b_conv", 70, "--trials 20 --budget 45s --append"),
    Task("attention", 180, "--append"),
    Task("padding", 40, "--trials 10 --budget 20s --append"),
    *(
        _exported(model, 150, 30, "--set subgraphs ")
        for model in ("detr_mha-1", "detr_encoder-1", "detr_decoder-1")
    ),
    Task("symbolic", 100, "--budget 30s --append"),
    *(
        Task("varying", 200, f"{name} --tune --budget 30s --compile-within 60s --append")
        for name in (
            "db_text_detector",
            "retinanet_r50",
            "unet",
            "hifigan",
            "bert_base",
            "resnet50",
        )
    ),
    *(
        Task(
            "fixed_sizes",
            150,
            f"{name} --tune --budget 30s --compile-within 60s --quick-compile --append",
        )
        for name in ("db_text_detector", "retinanet_r50", "unet", "hifigan")
    ),
    *(
        Task("regret", 150, f"{name} --within 2m --append")
        for name in ("resnet50", "db_text_detector", "unet")
    ),
    *(Task("serving_memory", 130, f"{name} --append") for name in ("db_text_detector", "hifigan")),
    *(
        Task("variants", seconds, f"{models} --tune --budget 25s --append")
        for seconds, models in (
            (
                150,
                "repvgg_a0_deploy_hard_swish repvgg_a0_deploy_gelu repvgg_a0_deploy_softplus"
                " repvggaug_a0_deploy",
            ),
            (110, "repvggaug_a0_deploy_hard_swish repvggaug3_a0_deploy_hard_swish"),
            (130, "repvggaug_a1_deploy repvggaug_a1_deploy_hard_swish"),
            (130, "repvggaug_b0_deploy repvggaug_b0_deploy_hard_swish"),
        )
    ),
    *(
        Task("advice", 130, f"{model} --tune --budget 30s --append")
        for model in (
            "three_channel_stem",
            "channels_46",
            "softplus_everywhere",
            "heads_of_72",
            "opset_11_reshapes",
            "vit_b16",
            "dlrm_mlp",
        )
    ),
    Task("chains", 60, "--budget 40s --append"),
    *(
        Task("plans", 150, f"{name} --tune --budget 40s --append")
        for name in (
            "retinanet_r50",
            "resnet50-32",
            "detr_r50_e6-1",
            "unet",
            "setr_naive-1",
            "vit_base-1",
            "bert_base-32x40",
            "swin_tiny-32",
        )
    ),
    *(
        Task("untuned", 130, f"{name} --tune --budget 45s --append")
        for name in (
            "resnet50-32",
            "vit_base-32",
            "bert_base-32x40",
            "mobilenet_v3_large-32",
            "swin_tiny-32",
            "convnext_tiny-32",
            "vit_base-1",
            "repvgg_a0_deploy-32",
            "dlrm_mlp-2048",
        )
    ),
    Task("profile_kernels", 80, "resnet50 vgg16 --append"),
    *(
        Task("tuning", seconds, f"{model} --budget 200s --append")
        for model, seconds in (
            ("resnet50", 110),
            ("vgg16", 110),
            ("repvgg_a0_deploy", 60),
            ("bert_base", 90),
        )
    ),
    *(Task("tuning", 240, f"{export} --append") for export in ("vit_base-32", "bert_base-32x40")),
    *(_exported(target.name, 300, 60, "--set autogtco ") for target in AUTOGTCO),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if chosen.list:
        for task in TASKS:
            print(f"{task.seconds:5.0f} s  {task.name}")
        return 0
    try:
        if chosen.install:
            install(chosen.install, chosen.beside)
            return 0
        failed = measure(chosen)
        if chosen.into == RESULTS and not failed:
            plots.main()
            tables.main()
    except OnnxboltError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 1 if failed else 0


def measure(chosen: argparse.Namespace) -> bool:
    """Run the tasks that are missing in `chosen.into`; returns True if some are still missing.
    Raises InputError if no commit is known."""
    if not (commit := machine.commit()):
        raise InputError("no commit is known here: set ONNXBOLT_COMMIT to that of the sources")
    if commit.endswith("-dirty"):
        raise InputError(
            f"the measured sources ({', '.join(machine.MEASURED)}) differ from commit {commit}:"
            " commit the changes first"
        )
    into: Path = chosen.into.resolve()
    into.mkdir(parents=True, exist_ok=True)
    if chosen.resume:
        with zipfile.ZipFile(chosen.resume) as bundle:
            bundle.extractall(into)
    schedule = Schedule(into, time.monotonic() + 60 * chosen.minutes, chosen.bundle, chosen.only)
    lanes = [threading.Thread(target=schedule.work, args=lane) for lane in lanes_of(chosen.gpus)]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    for name in schedule.missing:
        print(f"not measured: {name}", flush=True)
    return bool(schedule.missing)


def lanes_of(gpus: int) -> list[tuple[int, set[int]]]:
    """The number of each GPU, with its share of the processor's cores."""
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // gpus)
    return [(gpu, set(cores[gpu * share : (gpu + 1) * share])) for gpu in range(gpus)]


def _chosen(only: Sequence[str]) -> list[Task]:
    """The tasks whose names contain one of these texts, in the order of the texts; all if there are
    none."""
    found = [task for text in only for task in TASKS if text in task.name]
    return list(dict.fromkeys(found)) if only else list(TASKS)


class Schedule:
    """Tasks in order, for any number of lanes; finished ones are recorded in `directory`, and in
    `bundle` after each task."""

    def __init__(
        self, directory: Path, deadline: float, bundle: Path | None = None, only: Sequence[str] = ()
    ) -> None:
        self._directory, self._deadline, self._bundle = directory, deadline, bundle
        self._lock = threading.Lock()
        self._forget_other_commits()
        state = directory / STATE
        self._done: list[str] = json.loads(state.read_text()) if state.exists() else []
        self._chosen = _chosen(only)
        self._left = [task for task in self._chosen if task.name not in self._done]

    @property
    def missing(self) -> list[str]:
        return [task.name for task in self._chosen if task.name not in self._done]

    def _forget_other_commits(self) -> None:
        """Delete result files of another commit, and files that no command wrote: they are not part
        of this run."""
        fresh = {"commit": machine.commit(), "sources": machine.sources()}
        for path in self._directory.glob(documents.result_path("*").name):
            found = json.loads(path.read_text())
            if not documents.is_sealed(found) or any(
                found[field] != value for field, value in fresh.items()
            ):
                path.unlink()
                (self._directory / STATE).unlink(missing_ok=True)

    def work(self, gpu: int, cores: set[int]) -> None:
        """Run, on one GPU, the next task that fits the time, until none does."""
        while (task := self._next()) is not None:
            start = time.monotonic()
            code = self._run(task, gpu, cores)
            print(
                f"[gpu {gpu}] {task.name}: {'done' if code == 0 else f'ended with {code}'} in"
                f" {time.monotonic() - start:.0f} s ({task.seconds:.0f} expected);"
                f" {self._deadline - time.monotonic():.0f} s left",
                flush=True,
            )
            with self._lock:
                if code == 0:
                    self._done.append(task.name)
                    (self._directory / STATE).write_text(json.dumps(self._done))
                self._write_bundle()

    def _next(self) -> Task | None:
        with self._lock:
            seconds = self._deadline - _GRACE - time.monotonic()
            fitting = next(
                (task for task in self._left if task.seconds * _LEAST_SHARE <= seconds), None
            )
            if fitting:
                self._left.remove(fitting)
            return fitting

    def _run(self, task: Task, gpu: int, cores: set[int]) -> int:
        """The exit code of a command; a task that exceeds its time is ended with all processes that
        it started."""
        environment = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": str(gpu),
            # builds in one cache wait for each other, and a waiting tuner measures nothing
            "ONNXBOLT_CACHE_DIR": str(cache_directory() / f"gpu{gpu}"),
            DIRECTORY: str(self._directory),
        }
        print(
            f"[gpu {gpu}] {task.name}: begun, {self._deadline - time.monotonic():.0f} s left",
            flush=True,
        )
        process = subprocess.Popen(
            task.command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        os.sched_setaffinity(process.pid, cores)  # processes that it starts inherit them
        timer = threading.Timer(
            min(max(0.0, self._deadline - _GRACE - time.monotonic()), threading.TIMEOUT_MAX),
            _end,
            [process],
        )
        timer.start()
        assert process.stdout is not None
        for line in process.stdout:
            if not _NOISE.search(line):
                print(f"[gpu {gpu}] {line}", end="", flush=True)
        timer.cancel()
        return process.wait()

    def _write_bundle(self) -> None:
        if self._bundle is None:
            return
        temporary = self._bundle.with_suffix(".tmp")
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as bundle:
            for path in sorted(self._directory.glob("*.json")):
                bundle.write(path, path.name)
        temporary.replace(self._bundle)


def _end(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def install(bundle: Path, beside: bool = False) -> None:
    """Put a bundle's result files in their place, and renew plots and tables. `beside` keeps files
    of other commits, whose rows the bundle may lack: the commit is part of the new file's name.
    Raises InputError for a file that no command wrote at this checkout's history; nothing is copied
    then."""
    with tempfile.TemporaryDirectory() as scratch:
        with zipfile.ZipFile(bundle) as archive:
            archive.extractall(scratch)
        found = sorted(path for path in Path(scratch).glob("*-*.json"))
        read = {path: json.loads(path.read_text()) for path in found}
        for path, document in read.items():
            checked(document, path.name)
        for path, document in read.items():
            place = RESULTS / path.name
            if beside and place.exists():
                place = documents.beside(place, document)
            shutil.copy(path, place)
            print(place)
    plots.main()
    tables.main()


def checked(
    document: documents.Document, name: str, sources_at: Callable[[str], str] = machine.sources_at
) -> None:
    """Raises InputError unless a command wrote the document from the sources of the commit that
    it names."""
    if not documents.is_sealed(document):
        raise InputError(f"{name}: its digest does not fit its content: measure again")
    if document["sources"] != sources_at(document["commit"]):
        raise InputError(
            f"{name}: it was not measured from the sources of commit {document['commit']}: give the"
            " right ONNXBOLT_COMMIT"
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--into",
        type=Path,
        default=RESULTS,
        metavar="DIR",
        help="of the result files (default: benchmarks/results)",
    )
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="end after so many (default: none)"
    )
    parser.add_argument(
        "--gpus",
        type=int,
        default=1,
        help="measure on so many GPUs, each with its share of the cores (default: 1)",
    )
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        default=[],
        metavar="TEXT,..",
        help="tasks whose names contain one, in the order of the texts",
    )
    parser.add_argument(
        "--bundle",
        type=Path,
        metavar="FILE.zip",
        help="all result files in one file, renewed after each task",
    )
    parser.add_argument(
        "--resume", type=Path, metavar="FILE.zip", help="go on from an earlier call's bundle"
    )
    parser.add_argument(
        "--install",
        type=Path,
        metavar="FILE.zip",
        help="put a bundle's files in their place, and stop",
    )
    parser.add_argument(
        "--beside", action="store_true", help="with --install, keep files of other commits"
    )
    parser.add_argument("--list", action="store_true", help="name the tasks, and stop")
    return parser


if __name__ == "__main__":
    sys.exit(main())
