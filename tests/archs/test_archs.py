"""Architectures: the facts hang together, and an extension's is one declaration."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from onnxbolt import archs, gpu
from onnxbolt.archs import ARCHS, OWN, Arch, Capability, by_name, get
from onnxbolt.cli import commands
from onnxbolt.codegen.render import Instance, render_unit
from onnxbolt.dtypes import DType
from onnxbolt.errors import InputError
from onnxbolt.extensions import Extension, register, unregister
from onnxbolt.families import FAMILIES, candidates, config_from, only
from onnxbolt.library import Manifest, generated_sources
from onnxbolt.options import Options
from onnxbolt.problems import GemmProblem

BLACKWELL = dataclasses.replace(
    get(89),
    name="sm_120",
    number=120,
    nvcc="120",
    capabilities=get(89).capabilities | {Capability.DEPENDENT_LAUNCH, Capability.TMA},
    heuristics_gpu="",
)
# code for Hopper on a part with fewer SMs and less shared memory
SMALL = dataclasses.replace(
    get(90),
    name="small_90a",
    number=1090,
    sm_count=16,
    shared_memory_per_block=131 * 1024,
    shared_memory_per_sm=132 * 1024,
)
PROBLEM = GemmProblem(4096, 1024, 1024, DType.F16, DType.F16, ("Bias",))


@pytest.fixture
def extended() -> Iterator[None]:
    """The architectures as an extension adds them."""
    extension = Extension(name="parts", archs=(BLACKWELL, SMALL))
    register(extension)
    yield
    unregister(extension)


def test_unknown_ones_name_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"architecture 70.*sm_75.*sm_90a"):
        get(70)
    with pytest.raises(InputError, match=r"architecture sm_90;.*sm_75.*sm_90a"):
        by_name("sm_90")


@pytest.mark.parametrize("arch", OWN, ids=lambda arch: arch.name)
def test_limits_and_types(arch: Arch) -> None:
    arch.check()
    assert arch.supports(DType.F16)
    assert arch.supports(DType.BF16) == arch.supports(DType.F32) == (arch.number >= 80)
    assert arch.name == f"sm_{arch.nvcc}"
    assert arch.compute_capability == arch.number


@pytest.mark.parametrize("arch", OWN, ids=lambda arch: arch.name)
def test_tensor_rate_is_a_whole_number_of_products_per_clock(arch: Arch) -> None:
    per_clock = arch.flops[DType.F16] / arch.sm_count / arch.clock
    # FLOP per clock and SM, fp32 accumulation
    published = {75: 1024, 80: 2048, 86: 1024, 89: 1024, 90: 4096}[arch.number]
    assert per_clock == pytest.approx(published, rel=0.03)


@pytest.mark.parametrize(
    ("nvcc", "here", "runs"),
    [
        ("80", 80, True),
        ("80", 86, True),
        ("86", 80, False),
        ("80", 90, False),
        ("90a", 90, True),
        ("90a", 92, False),
        ("120", 121, True),
        ("120f", 121, True),
        ("120", 90, False),
    ],
)
def test_code_runs_on_its_generation(nvcc: str, here: int, runs: bool) -> None:
    assert dataclasses.replace(get(80), nvcc=nvcc).runs_on(here) is runs


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "sm 99"}, "a name is"),
        ({"number": 0}, "number 0 is not from 1"),
        ({"nvcc": "hopper"}, "no target of nvcc"),
        ({"nvcc": "75"}, "sm_75 cannot use cp_async"),
        ({"nvcc": "90", "capabilities": frozenset({Capability.WGMMA})}, "cannot use wgmma"),
        ({"nvcc": "120", "capabilities": frozenset({Capability.WGMMA})}, "cannot use wgmma"),
        ({"nvcc": "90a", "capabilities": frozenset({Capability.TCGEN05})}, "cannot use tcgen05"),
        ({"shared_memory_per_block": 2**20}, "more shared memory than an SM"),
        ({"mma": {}}, "different types"),
        ({"bandwidth": 0.0}, "larger than zero"),
        ({"mma_sync_share": 1.5}, "at most 1"),
    ],
)
def test_facts_that_cannot_be(changes: dict[str, object], message: str) -> None:
    wrong = dataclasses.replace(BLACKWELL, **changes)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=message):
        register(Extension(name="parts", archs=(wrong,)))
    assert tuple(ARCHS.values()) == OWN


def test_tensor_memory_is_blackwell_s() -> None:
    capabilities = get(90).capabilities - {Capability.WGMMA} | {Capability.TCGEN05}
    dataclasses.replace(SMALL, nvcc="100a", capabilities=capabilities).check()


@pytest.mark.parametrize("same", [{"name": "sm_80"}, {"number": 80}])
def test_names_and_numbers_are_one_architecture_s(same: dict[str, object]) -> None:
    other = dataclasses.replace(BLACKWELL, **same)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"of onnxbolt's own sm_80: give it another"):
        register(Extension(name="parts", archs=(other,)))


@pytest.mark.usefixtures("extended")
def test_options_and_the_command_line_offer_an_extension_s() -> None:
    assert Options(archs="sm_120").archs == ("sm_120",)
    shown = CliRunner().invoke(commands, ["optimize", "--help"]).output
    assert "sm_90a|sm_120|small_90a" in shown.replace("\n", "").replace(" ", "")


def test_options_refuse_one_that_is_not_registered() -> None:
    with pytest.raises(InputError, match=r"sm_120.*choose one of sm_75.*sm_90a$"):
        Options(archs="sm_120")
    refused = CliRunner().invoke(commands, ["optimize", "--arch", "sm_120", "a", "b"])
    assert refused.exit_code == 2
    assert "'sm_90a'" in refused.output


@pytest.mark.usefixtures("extended")
def test_families_serve_what_has_their_capabilities() -> None:
    found = {config.family.name for config in candidates(PROBLEM, BLACKWELL)}
    assert found == {"gemm_2x"}
    hopper = {config.family.name for config in candidates(PROBLEM, get(90))}
    assert {config.family.name for config in candidates(PROBLEM, SMALL)} <= hopper
    assert "gemm_sm90" in hopper


@pytest.mark.usefixtures("extended")
def test_rows_name_an_extension_s_architecture() -> None:
    config = candidates(PROBLEM, BLACKWELL)[0]
    assert config_from(config.row()) == config
    assert Instance(config.instance(), DType.F16, DType.F16, ("Bias",)).extensions == {"parts"}


def test_rows_of_an_architecture_that_is_not_installed_are_refused() -> None:
    row = candidates(PROBLEM, get(89))[0].row()
    with pytest.raises(ValueError, match="no kernel of gemm_2x has such arch"):
        config_from([BLACKWELL.number, *row[1:]])


def test_units_have_the_facts_of_their_architecture() -> None:
    text = render_unit([Instance(only("resize", 80), DType.F16, DType.F16)])
    assert "struct onnxbolt::Arch<80> {" in text
    assert "static constexpr int kSharedMemory = 166912;" in text
    assert "static constexpr bool kCpAsync = true;" in text
    assert "static constexpr bool kWgmma = false;" in text
    for capability in Capability:
        assert f" k{''.join(w.capitalize() for w in capability.value.split('_'))} = " in text


@pytest.mark.usefixtures("extended")
def test_manifests_have_the_facts_of_the_architectures_held() -> None:
    source = generated_sources(Manifest((), (), (80, 86, 90, 1090), ""))["manifest.cc"]
    rows = [line.strip() for line in source.splitlines() if line.startswith("    {")]
    # a GPU takes the first that it runs: the nearest one, and the package's own before others
    assert rows[:4] == [
        '{90, "sm_90a", 90, true},',
        '{1090, "small_90a", 90, true},',
        '{86, "sm_86", 86, false},',
        '{80, "sm_80", 80, false},',
    ]
    assert '"archs": [80, 86, 90, 1090]' in source


@pytest.mark.usefixtures("extended")
@pytest.mark.parametrize(
    ("capability", "name"),
    [((9, 0), "sm_90a"), ((8, 7), "sm_86"), ((12, 1), "sm_120"), ((10, 0), None), (None, None)],
)
def test_the_local_gpu_s_is_the_nearest(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] | None, name: str | None
) -> None:
    monkeypatch.setattr(gpu, "compute_capability", lambda: capability)
    assert gpu.local_arch() == name


def test_families_ask_for_capabilities() -> None:
    """Families that need nothing beyond CUDA run everywhere; each other one names its needs."""
    plain = {family.name for family in FAMILIES.values() if not family.needs}
    assert plain == {
        "pool",
        "depthwise",
        "quantized_depthwise",
        "squeeze_excite",
        "elementwise",
        "layout",
        "b2b_gemm_small",
        "resize",
        "norm",
        "group_norm",
        "pixel_shuffle",
        "grid_sample",
    }
    assert archs.names() == ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a")
