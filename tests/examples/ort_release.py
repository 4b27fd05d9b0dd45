"""ONNX Runtime as a release for C++ has it, include/ and lib/, from an installed wheel, which has
the libraries, and the tests' own declarations.

ORT_INCLUDE names the folder of Microsoft's headers to take instead, ORT_LIB a folder with
libonnxruntime.so where the wheel's was left out.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import onnxruntime
import pytest

from tests.conftest import ROOT

DECLARATIONS = Path(__file__).with_name("include")


def unpacked(directory: Path) -> Path:
    """The release's folder, of links, in `directory`."""
    release, wheel = directory / "onnxruntime", Path(onnxruntime.__file__).parent / "capi"
    lib = release / "lib"
    lib.mkdir(parents=True)
    (release / "include").symlink_to(os.environ.get("ORT_INCLUDE", DECLARATIONS))
    for library in wheel.glob("libonnxruntime_providers_*.so"):
        (lib / library.name).symlink_to(library)
    found = sorted(Path(os.environ.get("ORT_LIB", wheel)).glob("libonnxruntime.so.*"))
    if not found:
        pytest.fail(f"{wheel} has no libonnxruntime.so: name the folder of one by ORT_LIB")
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        (lib / name).symlink_to(found[0].resolve())
    return release


def environment(release: Path) -> dict[str, str]:
    """Variables to compile and run programs with: `ORT` as the pages have it, and the folders of
    CUDA's and cuDNN's libraries where they come from wheels."""
    folders = [str(path) for entry in sys.path for path in Path(entry).glob("nvidia/*/lib")]
    known = filter(None, [os.environ.get("LD_LIBRARY_PATH"), *folders])
    return {
        **os.environ,
        "ORT": str(release),
        "CPATH": str(ROOT / "custom_ops"),  # for the tests' declarations
        "LD_LIBRARY_PATH": ":".join(known),
    }
