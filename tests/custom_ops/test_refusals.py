"""Problems that kernels refuse before a launch, tested on the CPU; tests/gpu has the refusals of
compiled kernels."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import MEAN, PRODUCT
from onnxbolt.families import named, only
from onnxbolt.problems import ConvProblem
from tests.codegen.compilation import compile_program

LAYER = ("Bias", "Relu")
CHAIN = ConvProblem(
    2,
    14,
    14,
    64,
    256,
    3,
    3,
    14,
    14,
    (1, 1, 1, 1),
    (1, 1),
    (1, 1),
    1,
    DType.F16,
    DType.F16,
    (*LAYER, PRODUCT, *LAYER),
    inner=(64,),
)
ALONE = replace(CHAIN, k=64, groups=64, chain=LAYER, inner=())
AVERAGED = replace(CHAIN, p=8, q=8, k=64, chain=(*LAYER, MEAN), inner=())
_LAST = "y is to have its channels first, and the kernel puts them last"
_ONE = "y is to be written in both forms, and the kernel writes one"
# (a change, the kernel's answer)
RESIZES = (
    ("", "accepted"),
    (
        "resize.mode = ResizeMode(3);",
        "the mode, the coordinates or the rounding is none that the kernel knows",
    ),
    (
        "resize.coordinates = Coordinates(4);",
        "the mode, the coordinates or the rounding is none that the kernel knows",
    ),
    (
        "resize.rounding = Rounding(-1);",
        "the mode, the coordinates or the rounding is none that the kernel knows",
    ),
    ("resize.h = 0;", "there is no pixel to take"),
    ("resize.scale_w = 0;", "a scale is not positive"),
    ("resize.p = 1;", "accepted"),
    (
        "resize.p = 7;",
        "y has neither the resized height and width nor those of the epilogue's tensors",
    ),
    ("resize.tensor_h[0] = 4;", "an epilogue tensor has another height or width than y"),
    ("resize.epilogue.tensors[0] = nullptr;", "an epilogue tensor is missing"),
)
CHAINS = (
    ("", "accepted"),
    ("conv.k = 128;", "the first layer has another number of channels than the convolution"),
    ("chain.n[0] = 32;", "the first layer has another number of channels than the convolution"),
    ("conv.groups = 2;", "a chain of convolutions has no groups"),
    ("chain.n[1] = 264;", "a layer is wider than the kernel"),
    ("chain.ldd = 3;", "y or its pitch is not aligned to 16 bytes"),
    ("conv.y_nchw = 1;", _LAST),
    (
        "chain.stored = data;",
        "the first layer's result is to be stored, and the kernel does not store it",
    ),
)
# by older architectures' instructions, of the same problem
OLDER_CHAINS = (
    ("", "accepted"),
    ("conv.k = 128;", "the first layer has another number of channels than the convolution"),
    ("conv.groups = 2;", "a chain of convolutions has no groups"),
    ("chain.layers = 1;", "the kernel is for another number of layers"),
    ("chain.n[1] = 264;", "a layer is wider than the kernel"),
    ("conv.y_nchw = 1;", _LAST),
)
_FAR = "pixels of y or of a tensor lie too far apart"
HALO_CHAINS = (
    ("", "accepted"),
    ("conv.y_nchw = 1;", _LAST),
    ("conv.stored = data;", _ONE),
    ("conv.y_pitch = int64_t(1) << 29;", _FAR),
    ("chain.epilogue[1].tensor_pitch[0] = int64_t(1) << 29;", _FAR),
)
DEPTHWISE = (
    ("", "accepted"),
    ("conv.y_nchw = 1;", _LAST),
    ("conv.stored = data;", _ONE),
    (
        "conv.groups = 1;",
        "a depthwise convolution has as many groups and output channels as channels",
    ),
)
HALOS = (
    ("", "accepted"),
    ("conv.pad_right = -1;", "halo convolutions take no pixels off the image"),
    ("conv.dilation_w = 2;", "halo convolutions need dilation 1"),
    ("conv.stride_w = 2;", "halo convolutions need equal strides of 1 or 2"),
    ("conv.groups = 3;", "c and k have to be multiples of groups"),
    ("conv.groups = 16;", "x, its pitch, the filter or a group's c is not aligned to 16 bytes"),
)
# kernels that write NHWC, and kernels that write NCHW as well
ROWS = (
    ("", "accepted"),
    ("conv.depth.y = 14;", "x is a volume, and the kernel reads images"),
    ("conv.y_nchw = 1;", _LAST),
    ("conv.stored = data;", _ONE),
    ("conv.stored = data; conv.y_nchw = 1;", _ONE),
)
_FORMS = "conv.stored = data; conv.y_nchw = 1; "
BOTH = (
    (_FORMS, "accepted"),
    (_FORMS + "conv.padding = 63;", "accepted"),
    (_FORMS + "conv.y = data + 2; conv.y_pitch = 3;", "accepted"),
    ("", "y is to be written in one form, and the kernel writes both"),
    ("conv.stored = data;", "y is to have its channels last, and the kernel puts them first"),
    (_FORMS + "conv.padding = 64;", "no channel of y is left without the padding"),
    (_FORMS + "conv.padding = -1;", "no channel of y is left without the padding"),
    (_FORMS + "conv.stored = data + 8;", "y, its pitch or k is not aligned to align_c elements"),
    (_FORMS + "conv.k = 60;", "y, its pitch or k is not aligned to align_c elements"),
)
_IMAGE = "the kernel's means are of images of 1 to 64 pixels"
MEANS = (
    ("", "accepted"),
    ("conv.p = 9;", _IMAGE),
    ("conv.q = 0;", _IMAGE),
    ("conv.y_nchw = 1;", _LAST),
)
_DEPTH = "conv.depth = {14, 3, 14, 1, 1, 1, 1}; "
_FAR_OF_VOLUMES = "padding, or the filter's reach, exceeds the 16 pixels of TMA's im2col of volumes"
VOLUMES = (
    (_DEPTH, "accepted"),
    ("", "x is an image, and the kernel reads volumes"),
    (_DEPTH + "conv.y_nchw = 1;", _LAST),
    (_DEPTH + "conv.groups = 3;", "c and k have to be multiples of groups"),
    (_DEPTH + "conv.k = 60;", "y, its pitch or k is not aligned to align_c elements"),
    (_DEPTH + "conv.depth.pad_front = 17;", _FAR_OF_VOLUMES),
    (_DEPTH + "conv.depth.pad_front = 16;", "accepted"),
    (_DEPTH + "conv.pad_left = 17;", _FAR_OF_VOLUMES),
    (_DEPTH + "conv.depth.dilation = 9;", _FAR_OF_VOLUMES),
    (_DEPTH + "conv.depth.dilation = 8;", "accepted"),
    (
        _DEPTH + "conv.depth.dilation = 16; conv.depth.pad_back = 16;",
        "the filter exceeds TMA's 32 pixels",
    ),
    (_DEPTH + "conv.depth.stride = 9;", "a stride exceeds TMA's 8"),
    (_DEPTH + "conv.depth.y = 1 << 24;", "an extent exceeds 2^31 - 1"),
)
CASES = (
    *RESIZES,
    *CHAINS,
    *OLDER_CHAINS,
    *HALO_CHAINS,
    *HALOS,
    *DEPTHWISE,
    *ROWS,
    *BOTH,
    *VOLUMES,
    *MEANS,
)
_WRITER = (
    "Config<90, 0, 2147483647, 6, 128, 64, 64, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 8, 8, 8, 0, 1, 2,"
    " 0>, Half, Half, Layer"
)
_PROGRAM = """
#include <cstdio>
#include "families/b2b_conv_2x/kernel.h"
#include "families/b2b_conv_sm90/kernel.h"
#include "families/b2b_halo_sm90/kernel.h"
#include "families/conv3d_sm90/kernel.h"
#include "families/conv_sm90/kernel.h"
#include "families/depthwise/kernel.h"
#include "sm90/halo/launch.h"
#include "families/resize/kernel.h"
ARCHS
using namespace onnxbolt;
using Half = cutlass::half_t;
using Layer = epilogue::Chain<epilogue::Bias, epilogue::Relu>;
using Averaged = epilogue::Chain<epilogue::Bias, epilogue::Relu, epilogue::Mean>;
alignas(16) char data[256];

ResizeArguments Resizing() {
  ResizeArguments resize{};
  resize.mode = ResizeMode::kNearest, resize.coordinates = Coordinates::kAsymmetric;
  resize.rounding = Rounding::kFloor;
  resize.n = 1, resize.h = resize.w = 4, resize.c = 8, resize.scale_h = resize.scale_w = 2.f;
  resize.p = resize.q = resize.y_h = resize.y_w = 8;
  resize.x = resize.y = data, resize.x_pitch = resize.y_pitch = 8;
  resize.tensor_h[0] = 8, resize.tensor_w[0] = 1;
  resize.epilogue.tensors[0] = data, resize.epilogue.tensor_pitch[0] = 8;
  return resize;
}

ConvChainArguments Convolutions() {
  ConvArguments conv{2, 14, 14, 64, 64, 3, 3, 14, 14, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                     data, data, data, 64, 256, {}};
  ChainArguments chain{2 * 14 * 14, 9 * 64, 2, {64, 256}, data, {data, data}, data, 64, 256, {}};
  for (int layer : {0, 1}) chain.epilogue[layer].vectors[0] = reinterpret_cast<const float*>(data);
  conv.epilogue = chain.epilogue[0];
  return {conv, chain};
}

void Print(const char* refusal) { std::puts(refusal ? refusal : "accepted"); }

int main() {
PRINTS
}
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """In the order of CASES."""
    chain = "epilogue::Chain<epilogue::Add>"
    resizing = f"Resize<Config<{_row(only('resize', 90).row())}>, Half, Half, {chain}>"
    chains = tuple(
        (f"{kernel}, Half, Half, Layer, Layer>", changes)
        for kernel, changes in (
            (_kernel("b2b_conv_sm90", CHAIN, 90), CHAINS),
            (_kernel("b2b_conv_2x", CHAIN, 80), OLDER_CHAINS),
            (_kernel("b2b_halo_sm90", CHAIN, 90), HALO_CHAINS),
        )
    )
    alone = f"{_kernel('depthwise', ALONE, 90)}, Half, Half, Layer>"
    prints = [
        f"  {{ auto resize = Resizing(); {change} Print({resizing}::can_implement(&resize)); }}"
        for change, _ in RESIZES
    ]
    prints += [
        f"  {{ auto all = Convolutions(); [[maybe_unused]] auto& [conv, chain] = all; {change}"
        f" Print({chain}::can_implement(&all)); }}"
        for chain, changes in chains
        for change, _ in changes
    ]
    prints += [
        f"  {{ auto conv = Convolutions().conv; {change} Print(halo::CheckConvolution(conv)); }}"
        for change, _ in HALOS
    ]
    prints += [
        f"  {{ auto conv = Convolutions().conv; conv.groups = conv.k; conv.y_pitch = 64; {change}"
        f" Print({alone}::can_implement(&conv)); }}"
        for change, _ in DEPTHWISE
    ]
    prints += [
        f"  {{ auto conv = Convolutions().conv; conv.y_pitch = 64; {change}"
        f" Print({kernel}::can_implement(&conv)); }}"
        for kernel, changes in (
            (f"ConvSm90<{_WRITER}>", ROWS),
            (f"ConvSm90<{_WRITER}, true>", BOTH),
            (f"Conv3dSm90<{_WRITER}>", VOLUMES),
        )
        for change, _ in changes
    ]
    averaged = f"{_kernel('conv_sm90', AVERAGED, 90)}, Half, Half, Averaged>"
    image = "auto conv = Convolutions().conv; conv.p = conv.q = 8; conv.y_pitch = 64;"
    prints += [
        f"  {{ {image} {change} Print({averaged}::can_implement(&conv)); }}" for change, _ in MEANS
    ]
    source: Path = tmp_path_factory.mktemp("refusals") / "refusals.cu"
    program = compile_program(source, _PROGRAM.replace("PRINTS", "\n".join(prints)))
    return subprocess.run(
        [str(program)], capture_output=True, text=True, check=True
    ).stdout.splitlines()


def _kernel(name: str, problem: ConvProblem, arch: int) -> str:
    """The type of a candidate's kernel, but for its other arguments."""
    family = named(name)
    row = family.candidates(problem, get(arch))[0].row()
    return f"{family.type_name}<Config<{_row(row)}>"


def _row(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


@pytest.mark.parametrize(
    ("place", "change", "answer"), [(i, *case) for i, case in enumerate(CASES)]
)
def test_kernels_refuse_arguments_that_they_cannot_run(
    answers: list[str], place: int, change: str, answer: str
) -> None:
    assert answers[place] == answer, change
