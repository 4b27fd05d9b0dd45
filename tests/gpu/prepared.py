"""Optimized models of models/ for the GPU tests, and `python -m tests.gpu.prepared`, which compiles
their libraries beforehand.

The libraries' units come from onnxbolt's cache of compiled units, so that the tests themselves only
link.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

import onnxbolt
from models import build
from onnxbolt.codegen.artifacts import compile_units
from onnxbolt.codegen.nvcc import find_toolchain
from onnxbolt.library import Manifest, manifest_of_model, units

ARCH = "sm_90a"


@dataclass(frozen=True)
class Case:
    """A model, its batch (a number, or a symbolic dimension), and how it is optimized."""

    model: str
    batch: int | str = 4
    precision: str = "fp16"
    fuse: str = "all"

    @property
    def name(self) -> str:
        return f"{self.model}-{self.batch}-{self.precision}"

    def original(self) -> onnx.ModelProto:
        return build(self.model, self.batch)

    def optimize(self, directory: Path, library: bool = True) -> Path:
        """The optimized model's path in `directory`, with its library beside it."""
        path = directory / f"{self.name}.onnx"
        onnxbolt.optimize(
            self.original(),
            path,
            precision=self.precision,
            fuse=self.fuse,
            archs=(ARCH,),
            verify=False,
            library=library,
        )
        return path


CASES = (
    Case("resnet18"),
    Case("resnet50"),
    Case("vgg16", 2),
    Case("vgg19", 1),
    Case("repvgg_a0"),
    Case("repvgg_a1"),
    Case("repvgg_b0"),
    Case("repvgg_a0_deploy"),
    Case("repvgg_a1_deploy"),
    Case("repvgg_b0_deploy"),
    Case("repvggaug_a0_deploy"),
    Case("mobilenet_v3_large"),
    Case("squeezenet1_1"),
    Case("densenet121"),
    Case("bert_base"),
    Case("vit_b16"),
    Case("dlrm_mlp", 1024),
    Case("dlrm_bottom", 512),
    Case("dlrm_top", 512),
    Case("dcn_v2", 512),
    Case("resnet50", precision="bf16"),
    Case("bert_base", precision="bf16"),
    Case("resnet50", precision="keep"),
    Case("bert_base", precision="keep"),
    Case("dcn_v2", 512, precision="keep"),
)
SYMBOLIC = Case("resnet18", "batch")


def manifests(cases: Sequence[Case]) -> Iterator[Manifest]:
    """The manifests of these cases' libraries."""
    with tempfile.TemporaryDirectory() as directory:
        for case in cases:
            yield manifest_of_model(onnx.load(case.optimize(Path(directory), library=False)))


def main() -> None:
    """Every unit of every case's library in one run, on all cores."""
    wanted = dict.fromkeys(
        unit for manifest in manifests((*CASES, SYMBOLIC)) for unit in units(manifest)
    )
    compile_units(list(wanted), find_toolchain(), print)


if __name__ == "__main__":
    main()
