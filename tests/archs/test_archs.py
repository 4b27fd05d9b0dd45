"""Architectures: the facts hang together."""

import pytest

from onnxbolt.archs import ARCHS, Arch, get
from onnxbolt.dtypes import DType
from onnxbolt.errors import InputError
from onnxbolt.options import ARCHS as NAMES
from onnxbolt.options import arch_number


def test_every_name_of_the_command_line_is_an_architecture() -> None:
    assert tuple(get(arch_number(name)).name for name in NAMES) == NAMES


def test_unknown_number_names_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"architecture 70.*sm_75.*sm_90a"):
        get(70)


@pytest.mark.parametrize("arch", ARCHS.values(), ids=lambda arch: arch.name)
def test_limits_and_types(arch: Arch) -> None:
    assert arch.shared_memory_per_block <= arch.shared_memory_per_sm
    assert set(arch.mma) == set(arch.flops)
    assert arch.supports(DType.F16)
    assert arch.supports(DType.BF16) == arch.supports(DType.F32) == (arch.number >= 80)
    assert arch.name == f"sm_{arch.nvcc}"


@pytest.mark.parametrize("arch", ARCHS.values(), ids=lambda arch: arch.name)
def test_tensor_rate_is_a_whole_number_of_products_per_clock(arch: Arch) -> None:
    per_clock = arch.flops[DType.F16] / arch.sm_count / arch.clock
    # FLOP per clock and SM, fp32 accumulation
    published = {75: 1024, 80: 2048, 86: 1024, 89: 1024, 90: 4096}[arch.number]
    assert per_clock == pytest.approx(published, rel=0.03)
