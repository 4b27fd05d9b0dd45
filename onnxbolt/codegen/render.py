"""Renders kernel instances as CUDA source. A translation unit only instantiates types of the
headers in custom_ops/."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from onnxbolt.archs import ARCHS, Arch, Capability, get
from onnxbolt.codegen.declarations import constant
from onnxbolt.codegen.resources import include_dirs, resource_dir
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import CASTS, EPILOGUES, STORE, layers
from onnxbolt.families import FAMILIES, KernelConfig

# characters of names, numbers and types; none ends a string, a comment or a statement
_RENDERED = re.compile(r"[A-Za-z0-9_:<>,. ]*")


@dataclass(frozen=True)
class Instance:
    """One kernel to compile. `config` is a `KernelConfig.instance()`; `chain` holds the names of
    the epilogue's steps without a final cast."""

    config: KernelConfig
    dtype: DType
    out: DType
    chain: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.config != self.config.instance():
            raise ValueError(f"{self.config} carries launch choices: pass config.instance()")
        if unknown := [
            step for step in self.chain if step not in EPILOGUES or step in CASTS.values()
        ]:
            raise ValueError(f"chain {self.chain}: {unknown} are not steps of a kernel")
        if self.chain and not {"functors", "epilogue", "layers"} & set(self.config.family.takes):
            raise ValueError(f"{self.config.family.name} has no epilogue")

    @property
    def extensions(self) -> frozenset[str]:
        """The extensions that the kernel comes from."""
        owners = {
            ARCHS.owner(self.config.arch),
            FAMILIES.owner(self.config.family.number),
            *(EPILOGUES.owner(step) for step in self.chain),
        }
        return frozenset(owners - {""})

    @property
    def key(self) -> str:
        """The kernel's `epilogue` field in the library."""
        return ",".join(self.chain)


def instance_name(instance: Instance) -> str:
    """A C++ identifier that differs for instances that differ, e.g.
    gemm_2x_sm80_f16_f16_128x128x32_..._bias_relu."""
    config, types = instance.config, [instance.dtype.value, instance.out.value]
    words = [config.family.name, f"sm{config.arch}", *types, *config.family.words(config)]
    return "_".join([*words, *instance.chain]).lower()


def render_unit(instances: Sequence[Instance]) -> str:
    """One translation unit that registers `instances`, all of one family and architecture, in
    the order given."""
    targets = {(instance.config.family, instance.config.arch) for instance in instances}
    if len(targets) != 1:
        raise ValueError(
            f"a translation unit holds one family and architecture, not {sorted(map(str, targets))}"
        )
    if len(set(instances)) != len(instances):
        raise ValueError("an instance appears twice in a translation unit")
    family = instances[0].config.family
    return render(
        "unit.cu.j2",
        family=family.name,
        type=family.type_name,
        arch=_facts(get(instances[0].config.arch)),
        headers=_headers(instances),
        at_launch=[constant(slot) for slot in family.at_launch],
        kernels=[_fields(instance) for instance in instances],
    )


def include_dirs_of(instances: Iterable[Instance]) -> tuple[Path, ...]:
    """The folders of extensions' headers that a translation unit of `instances` needs."""
    return include_dirs(sorted({name for each in instances for name in each.extensions}))


def arch_source(arch: Arch) -> str:
    """The architecture's facts and capabilities as units declare them."""
    return render("arch.h.j2", arch=_facts(arch))


def _facts(arch: Arch) -> dict[str, object]:
    """The template's fields of an architecture (Arch in custom_ops/runtime/instance.h)."""
    numbers = {
        "kSharedMemory": arch.shared_memory_per_block,
        # values along k that an instruction of 16-bit types multiplies
        "kMmaDepth": arch.mma[DType.F16][2] if DType.F16 in arch.mma else 0,
    }
    flags = {"kTf32": arch.supports(DType.F32)} | {
        constant(capability.value): arch.has(capability) for capability in Capability
    }
    return {
        "number": arch.number,
        "facts": [
            *(("int", name, value) for name, value in numbers.items()),
            *(("bool", name, value) for name, value in flags.items()),
        ],
    }


def reference_steps() -> tuple[str, tuple[Path, ...]]:
    """Source in front of the tuner's reference that adds the steps of extensions, and the folders
    of their headers; empty where there are none."""
    found = [step for step in EPILOGUES.values() if step.definition]
    if not found:
        return "", ()
    owners = sorted({EPILOGUES.owner(step.name) for step in found} - {""})
    text = render(
        "reference_steps.h.j2",
        headers=sorted({step.definition.header for step in found if step.definition}),
        steps=[
            {
                "name": step.name,
                "operand": constant(step.operand or "none"),
                "params": len(step.params),
                "function": step.definition.function,
            }
            for step in found
            if step.definition
        ],
    )
    return text, include_dirs(owners)


def _headers(instances: Sequence[Instance]) -> list[str]:
    """The headers that declare the functors of extensions."""
    steps = {step for instance in instances for step in instance.chain}
    return sorted({EPILOGUES[step].header for step in steps} - {""})


def render(template: str, **values: object) -> str:
    """A template of templates/ with its values.

    A missing value is an error. Raises ValueError for a value with a character that names, numbers
    and types do not have: values are checked where they enter (checks.py), and here once more.
    """
    return _environment().get_template(template).render(values)


def template_arguments(instance: Instance) -> tuple[list[int], str]:
    """The row of numbers and the types that a kernel's C++ template takes."""
    types = (part for takes in instance.config.family.takes for part in _PARTS[takes](instance))
    return instance.config.row(), ", ".join(types)


def _fields(instance: Instance) -> dict[str, object]:
    """The template's fields of an instance."""
    row, types = template_arguments(instance)
    return {
        "name": instance_name(instance),
        "key": instance.key,
        "shared_memory": instance.config.family.shared_memory(instance),
        "row": ", ".join(map(str, row)),
        "types": types,
    }


def _element(instance: Instance) -> Iterable[str]:
    yield instance.dtype.storage


def _output(instance: Instance) -> Iterable[str]:
    yield instance.out.storage


def _functors(instance: Instance) -> Iterable[str]:
    """Each step's type."""
    yield from _types(instance.chain)


def _epilogue(instance: Instance) -> Iterable[str]:
    """One type of all steps with a functor; a Store has none."""
    yield _chain(step for step in instance.chain if EPILOGUES[step].functor)


def _layers(instance: Instance) -> Iterable[str]:
    """The epilogue of each product."""
    yield from map(_chain, layers(instance.chain))


def _stores(instance: Instance) -> Iterable[str]:
    """Yields "true" if an inner result is stored as well, or y in both layouts."""
    yield "true" if STORE in instance.chain else "false"


# arguments that a family's C++ template can take after the configuration
_PARTS: Mapping[str, Callable[[Instance], Iterable[str]]] = {
    "element": _element,
    "output": _output,
    "functors": _functors,
    "epilogue": _epilogue,
    "layers": _layers,
    "stores": _stores,
}


def _chain(steps: Iterable[str]) -> str:
    return f"onnxbolt::epilogue::Chain<{', '.join(_types(steps))}>"


def _types(steps: Iterable[str]) -> Iterable[str]:
    return (EPILOGUES[step].qualified_functor for step in steps)


def _harmless(value: object) -> str:
    text = str(value)
    if _RENDERED.fullmatch(text) is None:
        raise ValueError(
            f"{text[:200]!r} is not rendered into a source: it is no name, number or type"
        )
    return text


@functools.cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(resource_dir("templates")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # C++, not HTML
        finalize=_harmless,
    )
