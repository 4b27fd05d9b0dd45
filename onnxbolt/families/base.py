"""The base classes of kernel families and of their configurations."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from onnxbolt.archs import ARCHS, Arch, Capability
from onnxbolt.dtypes import DType
from onnxbolt.families import row
from onnxbolt.families.row import at
from onnxbolt.problems import UNBOUNDED, Problem

_LARGEST_TILE = 1024  # rows or columns of a block's tile


@dataclass(frozen=True)
class Layers:
    """Back-to-back products that one kernel might compute, before their sizes are known."""

    problem: type[Problem] | None  # the problem class of a kernel for them
    # the first product reads its rows as they are stored (a GEMM or a 1x1 convolution)
    pointwise: bool
    dtype: DType
    depth: int  # inputs that an output of the first product sums
    widths: tuple[int, ...]  # columns of each layer
    steps: tuple[str, ...]  # the epilogue's steps; a step Gemm is a further product


@dataclass(frozen=True)
class Stem:
    """A convolution that might read NCHW, and 1x1 convolutions behind it."""

    dtype: DType
    widths: tuple[int, ...]  # channels of each layer, as stored
    filter: tuple[int, ...]  # [C, R, S]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int
    steps: tuple[str, ...]


class Schedule(enum.IntEnum):
    """How the consumer warpgroups of an sm_90a kernel share the tiles."""

    NONE = 0
    COOPERATIVE = 1  # they share a tile's rows
    PINGPONG = 2  # each has a tile of its own; one's epilogue hides behind the other's main loop


SCHEDULES = {schedule: int(schedule) for schedule in Schedule}
FLAG = {False: 0, True: 1}  # how rows hold a flag


@dataclass(frozen=True, kw_only=True)
class KernelConfig:
    """The configuration of one kernel: named fields, which `row` and `Family.decode` convert to and
    from the numbers that files hold. Each family has a subclass. Sizes are in elements; m counts
    rows of the (implicit) GEMM."""

    family: ClassVar[Family[Any]]

    arch: int = at("arch")  # its number in onnxbolt/archs/: 90 for sm_90a
    min_m: int = at("min_m", default=0, compiled=0)  # the row serves min_m <= m <= max_m
    max_m: int = at("max_m", default=UNBOUNDED, compiled=UNBOUNDED)

    def __lt__(self, other: KernelConfig) -> bool:
        """Configurations are ordered by their rows, across families."""
        return self._numbers < other._numbers

    @cached_property
    def _numbers(self) -> tuple[int, ...]:
        return self.family.encode(self)

    def row(self) -> list[int]:
        """The configuration as numbers."""
        return list(self._numbers)

    def instance(self) -> Self:
        """The compiled instance: the configuration without the fields that a launch decides."""
        places = self.family.places.items()
        compiled = {name: place.compiled for name, place in places if place.at_launch}
        return dataclasses.replace(self, **compiled)

    def mismatched(self) -> list[str]:
        """The names of fields whose values are valid each, but not together."""
        return ["range of m"] if self.min_m > self.max_m else []

    def named(self) -> dict[str, Any]:
        """The family's name, and the fields by name, enumerations as words."""
        return {"family": self.family.name} | {
            name: value.name.lower() if isinstance(value, enum.Enum) else value
            for name, value in ((name, getattr(self, name)) for name in self.family.places)
        }


C = TypeVar("C", bound=KernelConfig)


class Typed(Protocol):
    """The types and steps that decide shared memory, of a problem or of a compiled kernel."""

    @property
    def dtype(self) -> DType: ...
    @property
    def out(self) -> DType: ...
    @property
    def chain(self) -> tuple[str, ...]: ...


class Compiled(Typed, Protocol):
    """The parts of a compiled kernel (codegen's `Instance`)."""

    @property
    def config(self) -> Any: ...


class Family(Generic[C]):
    """A kernel family, as planning, tuning and code generation use it. Each family is one instance
    of a subclass, listed in the registry (families/__init__.py)."""

    number: int  # in rows; extensions' numbers begin at 1000
    name: str  # also its folder's name in custom_ops/families/
    config: type[C]
    problems: tuple[type[Problem], ...] = ()  # the problem classes that it solves
    kinds: frozenset[str] = frozenset()  # the op kinds that its kernels compute
    # slots without a field that hold another number than the default
    fixed: Mapping[str, int] = row.NOTHING
    needs: frozenset[Capability] = frozenset()  # capabilities of the SMs that its kernels run on
    tensor_cores: bool = True  # False: fp32 is multiplied exactly, not as TF32
    # kernels may start before the previous one ends (programmatic dependent launch)
    waits: bool = True
    compile_seconds: float = 1.0  # about how long one core compiles one kernel
    most_mean_pixels: int = 0  # the largest image that an epilogue can average
    # the target of nvidia-matmul-heuristics for kernels with these tiles (`config.tile`); empty if
    # it knows none
    heuristics_target: str = ""
    # False: no kernel of the family has run on a GPU yet, so that planning chooses none
    measured: bool = True
    # classes of its problems for which this holds of kernels that are measured otherwise
    unmeasured: tuple[type[Problem], ...] = ()
    # types of codes that its kernels take, or make, in place of values, by themselves
    codes: tuple[DType, ...] = ()
    by_channel: bool = False  # its kernels convolve codes in as many groups as there are channels
    codes_measured: bool = True  # False: its kernels of codes have not run on a GPU yet
    # True if its products of codes add values, and write their result as values, too; of a
    # normalization, if it writes values beside codes
    moves_values: bool = False
    generation: int = 2  # the tuner tries few of a problem's families of earlier generations

    def __init__(self) -> None:
        """Raises ValueError if the configuration class belongs to another family, whose rows would
        then be refused."""
        if owner := vars(self.config).get("family"):
            raise ValueError(
                f"kernel family {self.name}: {self.config.__name__} is the configuration class of"
                f" family {owner}. Give it a subclass of that class"
            )
        self.config.family = self
        self.places = row.places(self.config)
        held = {**row.DEFAULTS, "family": self.number, **self.fixed}
        self.encode = row.encoder(self.places, held)

    def __repr__(self) -> str:
        return self.name

    # --- planning -------------------------------------------------------------------------------

    def candidates(self, problem: Any, arch: Arch) -> Sequence[C]:
        """Every configuration worth trying for `problem`, each for all m; none where the family
        does not solve it. `arch` has what the family needs."""
        return ()

    def predicted_us(self, problem: Any, config: C, arch: Arch) -> float:
        """Microseconds of one launch, epilogue included."""
        raise NotImplementedError(f"{self.name} is not chosen by its time")

    def terms(self, problem: Any, config: C, arch: Arch) -> Mapping[str, float]:
        """Terms of the formula of `predicted_us`, which a learned cost model is told."""
        return {}

    def launches(self, config: C) -> Sequence[Sequence[C]]:
        """The configurations that the tuner tries for each decision of a launch (swizzle, split of
        k): one sequence per decision."""
        return ()

    def joins(self, layers: Layers) -> bool:
        """True if there may be a kernel for these layers together."""
        return False

    def reads_nchw(self, stem: Stem) -> bool:
        """True if there is a kernel that reads these convolutions' x as NCHW."""
        return False

    def reads_any_rows(self, dtype: DType, columns: int) -> bool:
        """True if there is a kernel for a GEMM whose rows of A have any length."""
        return False

    def runs_on(self, arch: Arch) -> bool:
        """True if the architecture has what the kernels need."""
        return self.needs <= arch.capabilities

    def shortage(self, problem: Any, arch: Arch) -> str | None:
        """The reason, for a report, why an SM has no room for several layers in one kernel; None if
        it has room, or if room is not the reason."""
        return None

    # --- rows -----------------------------------------------------------------------------------

    def decode(self, numbers: Sequence[int]) -> C:
        """The configuration of a row. Raises ValueError for a row that no kernel of this family
        has."""
        held = dict(zip(row.SLOTS, numbers, strict=True))
        config = self.config(**{name: place.decode(held) for name, place in self.places.items()})
        unsound = [n for n, p in self.places.items() if not p.sound(getattr(config, n))]
        if config.arch not in ARCHS:
            unsound.append("arch")
        unsound = unsound or config.mismatched()
        if unsound or config.row() != list(numbers):
            what = unsound[0].replace("_", " ") if unsound else "numbers"
            raise ValueError(
                f"configuration {list(numbers)}: no kernel of {self.name} has such {what}"
            )
        return config

    # --- generated sources ----------------------------------------------------------------------

    # parts that are the C++ template's arguments (codegen/render.py)
    takes: tuple[str, ...] = ("element", "output", "epilogue")

    @property
    def at_launch(self) -> list[str]:
        """The slots of a row that a launch decides: rows of one compiled kernel differ in them."""
        decided = {
            slot for place in self.places.values() if place.at_launch for slot in place.slots
        }
        return [slot for slot in row.SLOTS if slot in decided]

    def shared_memory(self, kernel: Compiled) -> int | None:
        """Bytes of dynamic shared memory that a block of the compiled kernel takes; generated units
        assert it. None where C++ alone knows: CUTLASS's layout, or a launch, decides."""
        return None

    def words(self, config: C) -> list[str]:
        """The words in an instance's C++ name that tell it from the family's other instances."""
        return [
            f"{name}_{_word(getattr(config, name))}"
            for name, place in self.places.items()
            if not place.at_launch and name != "arch"
        ]

    @property
    def type_name(self) -> str:
        """The C++ template's name in namespace onnxbolt, e.g. B2bGemmSm90."""
        return "".join(word.capitalize() for word in self.name.split("_"))


def _word(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return value.name.lower()
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(int(value))


def tile_size(value: int) -> bool:
    """True for a number of rows or columns that a tile can have."""
    return 0 < value <= _LARGEST_TILE


def positive(value: Any) -> bool:
    """True for a number of at least 1, and for several such."""
    return min(value) > 0 if isinstance(value, tuple) else value > 0


def access(value: int) -> bool:
    """True for a number of elements that one access can have."""
    return value in (1, 2, 4, 8, 16)


def warpgroups(value: int) -> bool:
    """True for a number of consumer warpgroups that a block can have."""
    return 1 <= value <= 8


def stage_count(value: int) -> bool:
    """True for a number of stages that a ring can have; 0: as many as shared memory holds."""
    return value <= 32


def clusters(value: int | tuple[int, int]) -> bool:
    """True for a number of blocks, along one or two axes, that a cluster can have."""
    return all(1 <= n <= 16 for n in (value if isinstance(value, tuple) else (value,)))
