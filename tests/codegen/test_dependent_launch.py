"""In each family's PTX: before griddepcontrol.wait a kernel reads nothing but what is constant for
the session (dependent_launch.h).

Kernels that wait may start while the kernel before them still runs. What that one writes (x, tensor
operands) must not be read before the wait, nor anything be written, since it may still be read.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from onnxbolt.codegen.artifacts import compile_units
from onnxbolt.codegen.nvcc import Toolchain
from onnxbolt.codegen.resources import resource_dir
from onnxbolt.families import FAMILIES, Family, named
from onnxbolt.library import generated_sources
from tests.codegen.compilation import compile_program, joined_texts, watchful
from tests.codegen.ptx import WAIT, Instruction, Kernel, kernels
from tests.gpu.fault_models import ARCH, prepare

# a limit would measure how busy the machine is; compilers have one of processor time
pytestmark = pytest.mark.timeout(0)
# launched behind the kernel before
PLAIN = {
    named("gemm_2x"),
    named("gemm_3x"),
    named("conv_2x"),
    named("b2b_gemm_2x"),
    named("b2b_conv_2x"),
}
# for each family: the type of its kernels' parameter, and the fields of it that are constant
CONSTANTS: dict[Family[Any], tuple[str, tuple[str, ...]]] = {
    named("pool"): ("pool::Params", ()),
    named("layout"): ("layout::Params", ()),
    named("resize"): ("resize::Params", ("epilogue.vectors",)),
    named("pixel_shuffle"): ("pixel_shuffle::Params", ("epilogue.vectors",)),
    named("grid_sample"): ("grid_sample::Params", ()),
    named("elementwise"): ("elementwise::Params", ("epilogue.vectors",)),
    named("norm"): ("norm::Params", ("epilogue.vectors",)),
    named("group_norm"): ("group_norm::Params", ("gamma", "beta", "epilogue.vectors")),
    named("attention"): ("attention::Params", ()),
    named("attention_sm90"): ("attention_sm90::Params", ()),
    named("depthwise"): ("depthwise::Params", ("filter", "epilogue.vectors")),
    named("quantized_depthwise"): ("depthwise::Params", ("filter", "epilogue.vectors")),
    named("squeeze_excite"): (
        "squeeze_excite::Params",
        ("squeeze", "squeeze_bias", "excite", "excite_bias"),
    ),
    named("gemm_sm90"): ("sm90::Params", ("b", "operands.vectors")),
    named("conv_sm90"): ("sm90::Params", ("b", "operands.vectors")),
    named("conv3d_sm90"): ("sm90::VolumeParams", ("b", "operands.vectors")),
    named("quantized_gemm_sm90"): ("sm90::CodeParams", ("b", "operands.vectors", "offsets")),
    named("quantized_conv_sm90"): ("sm90::CodeParams", ("b", "operands.vectors", "offsets")),
    named("conv_transpose_sm90"): (
        "sm90::PhasedParams<sm90::PhasedPlaces>",
        ("b", "operands.vectors"),
    ),
    # sizes, of which the weights' addresses are computed, are constant as well
    named("gemm_skinny"): (
        "gemm_skinny::Params",
        ("b", "ldb", "column_tiles", "split", "epilogue.vectors"),
    ),
    named("halo_sm90"): ("halo::Params", ("filter", "epilogue.vectors")),
    named("stem_sm90"): ("stem::Params", ("filter", "epilogue.vectors")),
    named("b2b_gemm_small"): (
        "ChainArguments",
        ("weights", *(f"epilogue[{i}].vectors" for i in range(4))),
    ),
    named("b2b_gemm_sm90"): (
        "sm90::ChainParams",
        ("weights", *(f"operands[{i}].vectors" for i in range(4))),
    ),
    named("gemm_rows_sm90"): (
        "sm90::ChainParams",
        ("weights", *(f"operands[{i}].vectors" for i in range(4))),
    ),
    named("b2b_gemm_wide_sm90"): (
        "sm90::ChainParams",
        ("weights", *(f"operands[{i}].vectors" for i in range(4))),
    ),
    named("b2b_stored_sm90"): (
        "sm90::StoredParams",
        ("weights", *(f"operands[{i}].vectors" for i in range(2))),
    ),
    named("b2b_conv_sm90"): (
        "sm90::ConvChainParams",
        ("b", "weights", "operands.vectors", *(f"inner[{i}].vectors" for i in range(4))),
    ),
    named("b2b_halo_sm90"): (
        "halo::ChainParams",
        ("filter", "weights", "epilogue.vectors", *(f"inner[{i}].vectors" for i in range(2))),
    ),
    named("b2b_stem_sm90"): (
        "stem::ChainParams",
        ("filter", "next", "epilogue.vectors", "inner.vectors"),
    ),
}
# in a mangled name, the fourth number of a configuration's row, and a namespace behind its length
_ROW = re.compile(r"6ConfigIJ(?:Lln?\d+E){3}Ll(\d+)E")
_NAMESPACE = re.compile(r"_ZN8onnxbolt(\d+)(\w+)")
_PROGRAM = """
#include <cstdio>
#include <type_traits>
INCLUDES
using namespace onnxbolt;

// The offset of each element of a field, or of the field.
template <class P, class Field>
void Print(const P& it, const Field& field) {
  const auto offset = [&](const void* at) {
    return static_cast<int>(static_cast<const char*>(at) - reinterpret_cast<const char*>(&it));
  };
  if constexpr (std::is_array_v<Field>) {
    for (const auto& element : field) std::printf("%d ", offset(&element));
  } else {
    std::printf("%d ", offset(&field));
  }
}

template <class P>
const P& Any() {
  alignas(128) static char place[sizeof(P)];
  return reinterpret_cast<const P&>(place);
}

int main() {
PRINTS
}
"""


class PtxToolchain(Toolchain):
    """Compiles a kernel to PTX alone."""

    def compile_command(self, source: str, output: str, arch: int = 0) -> list[str]:
        command = [
            part
            for part in super().compile_command(source, output, arch)
            if not part.startswith(("-gencode", "-Xptxas"))
        ]
        command[command.index("-c")] = "-ptx"
        return [*command, "-arch=compute_90a"]


@pytest.fixture(scope="module")
def found() -> dict[Family[Any], list[Kernel]]:
    """The kernels of one instance of each family. A unit has several families, since the compiler
    reads their common headers once for each unit."""
    base = watchful()
    toolchain = PtxToolchain(base.nvcc, base.version, base.cutlass, base.library_dir)
    texts = []
    for family in CONSTANTS:
        sources = generated_sources(prepare(family).manifest)
        name = next(name for name in sources if name.startswith(f"{family.name}_sm{ARCH}"))
        texts.append(sources[name])
    units = [joined_texts(texts[i::4], ARCH) for i in range(4)]
    of_families: dict[Family[Any], list[Kernel]] = {family: [] for family in CONSTANTS}
    for path in compile_units(units, toolchain):
        for kernel in kernels(path.read_text()):
            of_families[_family(kernel)].append(kernel)
    return of_families


def _family(kernel: Kernel) -> Family[Any]:
    """The family whose number is in the row of the kernel's configuration; that of the kernel's
    namespace, where one kernel serves several configurations."""
    if numbers := _ROW.search(kernel.name):
        return FAMILIES[int(numbers[1])]
    within = _NAMESPACE.match(kernel.name)
    assert within, kernel.name
    return named(within[2][: int(within[1])])


@pytest.fixture(scope="module")
def constants(tmp_path_factory: pytest.TempPathFactory) -> dict[Family[Any], set[int]]:
    """The places of the constant fields."""
    headers = sorted({family.name for family in CONSTANTS})
    prints = [
        " ".join(
            (
                f"  {{ const auto& it = Any<{kind}>();",
                *(f"Print(it, it.{field});" for field in fields),
                'std::puts(""); }',
            )
        )
        for kind, fields in CONSTANTS.values()
    ]
    text = _PROGRAM.replace(
        "INCLUDES", "\n".join(f'#include "families/{name}/kernel.h"' for name in headers)
    ).replace("PRINTS", "\n".join(prints))
    source: Path = tmp_path_factory.mktemp("constants") / "constants.cu"
    lines = subprocess.run(
        [str(compile_program(source, text))], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return {
        family: set(map(int, line.split())) for family, line in zip(CONSTANTS, lines, strict=True)
    }


def dependent(kernel: Kernel, constant: set[int]) -> list[Instruction]:
    """Early accesses that are not reads of constants alone; one whose address comes from nowhere
    is among them."""
    return [
        access
        for access in kernel.early()
        if _writes(access) or not (offsets := kernel.offsets(access)) or not offsets <= constant
    ]


def _writes(access: Instruction) -> bool:
    return (
        access.opcode.startswith(("st", "atom", "red", "cp.reduce"))
        or ".global.shared::cta" in access.opcode
    )


def test_every_family_is_judged() -> None:
    assert set(FAMILIES.values()) == CONSTANTS.keys() | PLAIN


@pytest.mark.parametrize("family", sorted(PLAIN, key=str), ids=str)
def test_kernels_that_do_not_wait_are_launched_plainly(family: Family[Any]) -> None:
    root = resource_dir("custom_ops")
    sources = [root / "families" / family.name / "kernel.h", *(root / "mma").rglob("*.h")]
    assert not any("LaunchDependent" in path.read_text() for path in sources)


@pytest.mark.parametrize("family", CONSTANTS, ids=str)
def test_nothing_dependent_is_touched_before_the_wait(
    found: dict[Family[Any], list[Kernel]],
    constants: dict[Family[Any], set[int]],
    family: Family[Any],
) -> None:
    assert found[family]
    for kernel in found[family]:
        assert kernel.waits, kernel.name
        assert dependent(kernel, constants[family]) == [], kernel.name


@pytest.mark.parametrize("family", CONSTANTS, ids=str)
def test_without_its_waits_each_kernel_is_found(
    found: dict[Family[Any], list[Kernel]],
    constants: dict[Family[Any], set[int]],
    family: Family[Any],
) -> None:
    """The check can fail."""
    for kernel in found[family]:
        unwaiting = [
            Instruction("nop", "", False) if each.opcode == WAIT else each
            for each in kernel.instructions
        ]
        assert dependent(Kernel(kernel.name, unwaiting), constants[family]), kernel.name
