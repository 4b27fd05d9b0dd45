"""A git repository with models and their lock files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import onnx

from onnxbolt.cli import main
from tests.support import Net

FLAGS = ("--no-library", "--no-verify", "--fuse=all", "--arch=sm_90a", "--quiet")


def net(width: int = 32) -> onnx.ModelProto:
    """A layer of a perceptron."""
    net = Net({"x": (8, 64)})
    return net.model(net.node("Relu", net.linear("x", 64, width)))


class Repository:
    """A repository on the branch `main`, whose models are in nets/ and lock files in locks/."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> str:
        """The output of git, with an author and without the user's configuration."""
        author = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.com"]
        command = ["git", *author, "-c", "commit.gpgsign=false", "-C", str(self.path), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def save(self, name: str, model: onnx.ModelProto) -> Path:
        """Write a model to nets/."""
        path = self.path / "nets" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(model, path)
        return path

    def lock(self, *flags: str) -> None:
        """Write the lock files of all models."""
        nets, locks = self.path / "nets", self.path / "locks"
        out = self.path.parent / f"{self.path.name}-out"
        assert main(["optimize", str(nets), str(out), "--lock", str(locks), *FLAGS, *flags]) == 0

    def commit(self, message: str = "Change models") -> None:
        """Commit everything."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)
