"""The facts that a result file records: the GPU, the driver, package versions, and the code that
was measured."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# folders that decide a figure; docs and tests do not
MEASURED = ("benchmarks", "custom_ops", "models", "onnxbolt", "templates")
_PACKAGES = (
    "onnxbolt",
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
    "nvidia-cutlass",
    "torch",
    "timm",
    "torchvision",
    "transformers",
    "numpy",
)
_NO_SOURCE = ("benchmarks/results/",)


def gpu_name() -> str:
    """The GPU's name in nvidia-smi, or the processor's architecture if there is no GPU."""
    return ask_driver("name") or f"cpu {platform.machine()}"


def gpu_index() -> str:
    """The GPU that CUDA calls device 0, as nvidia-smi counts them."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0] or "0"


def ask_driver(what: str) -> str:
    """One of nvidia-smi's properties, "" if there is no driver."""
    try:
        command = [
            "nvidia-smi",
            f"--query-gpu={what}",
            "--format=csv,noheader",
            f"--id={gpu_index()}",
        ]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (FileNotFoundError, subprocess.CalledProcessError):
        return ""


def versions() -> dict[str, str]:
    """Versions of Python and of each package that takes part."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit(root: Path = ROOT) -> str:
    """The checkout's commit, with -dirty where a measured file differs from it; outside a
    checkout what ONNXBOLT_COMMIT says."""
    head = _git(root, "rev-parse", "--short=12", "HEAD")
    if not head:
        return os.environ.get("ONNXBOLT_COMMIT", "")
    changed = _git(root, "status", "--porcelain", "--", *MEASURED).splitlines()
    return f"{head}-dirty" if any(not line[3:].startswith(_NO_SOURCE) for line in changed) else head


@functools.cache
def sources(root: Path = ROOT) -> str:
    """A digest of every measured file as it lies on the disk; equal to `sources_at` of an
    unchanged checkout's commit."""
    files = [
        path
        for folder in MEASURED
        for path in (root / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    return _digest({path.relative_to(root).as_posix(): _blob(path.read_bytes()) for path in files})


def sources_at(commit: str, root: Path = ROOT) -> str:
    """The same digest for a commit of the checkout's history, "" where git does not know the
    commit."""
    listed = _git(root, "ls-tree", "-r", commit, "--", *MEASURED)
    entries = [line.split(None, 3) for line in listed.splitlines()]
    return _digest({path: blob for _, _, blob, path in entries}) if entries else ""


def _digest(blobs: dict[str, str]) -> str:
    lines = (
        f"{blob} {path}\n"
        for path, blob in sorted(blobs.items())
        if not path.startswith(_NO_SOURCE)
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _blob(data: bytes) -> str:
    """Git's name for a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _git(root: Path, *arguments: str) -> str:
    """Git's output, "" outside a checkout."""
    try:
        return subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        ).stdout.rstrip("\n")
    except (FileNotFoundError, subprocess.CalledProcessError):
        return ""
