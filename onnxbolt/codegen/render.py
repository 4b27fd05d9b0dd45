"""Kernel instances to CUDA source: a translation unit names types of the headers in custom_ops/,
nothing more."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import jinja2

from onnxbolt.codegen.resources import resource_dir
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import CASTS, EPILOGUES, STORE, layers
from onnxbolt.kernels.config import Family, Iterator, KernelConfig, Schedule

# names, numbers and types: nothing that ends a string, a comment or a statement
_RENDERED = re.compile(r"[A-Za-z0-9_:<>,. ]*")


@dataclass(frozen=True)
class Instance:
    """One kernel to compile. `config` is a `KernelConfig.instance()`; `chain` holds step names
    without a final cast."""

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
            raise ValueError(f"chain {self.chain}: {unknown} are no steps of a kernel")
        if self.config.family is Family.POOL and self.chain:
            raise ValueError("pooling has no epilogue")

    @property
    def key(self) -> str:
        """The kernel's `epilogue` field in the library."""
        return ",".join(self.chain)


def instance_name(instance: Instance) -> str:
    """A C++ identifier that differs for instances that differ, e.g.
    gemm_2x_sm80_f16_f16_128x128x32_..._bias_relu."""
    c = instance.config
    words = [c.family.name, f"sm{c.arch}", instance.dtype.value, instance.out.value]
    words += (
        [f"a{c.align_a}"]
        if c.family is Family.POOL
        else [_shape(c.threadblock), f"a{c.align_a}_{c.align_b}_{c.align_c}"]
    )
    if c.family in (Family.GEMM_2X, Family.CONV_2X):
        words += [f"w{_shape(c.warp)}", f"i{_shape(c.instruction)}", f"z{c.swizzle}"]
    if c.family in (
        Family.DEPTHWISE,
        Family.B2B_GEMM_SM90,
        Family.B2B_CONV_SM90,
        Family.B2B_GEMM_SMALL,
        Family.B2B_GEMM_WIDE_SM90,
        Family.B2B_STORED_SM90,
    ):
        words += [f"f{_shape(c.warp)}"]
    if c.family in (
        Family.STEM_SM90,
        Family.B2B_STEM_SM90,
        Family.B2B_GEMM_2X,
        Family.B2B_CONV_2X,
    ):
        words += [f"f{_shape(c.warp)}", f"t{_shape(c.instruction)}"]
    if c.family in (Family.GEMM_SM90, Family.CONV_SM90) and c.instruction[0]:
        words += ["swapped"]
    if c.family is Family.HALO_SM90:
        words += [f"p{c.instruction[0]}"]
    if c.family is Family.B2B_HALO_SM90:
        words += [f"p{_shape(c.instruction)}"]
    if c.family is Family.GEMM_3X or c.consumers:
        words += [f"c{_shape(c.cluster)}"]
    if c.consumers:
        words += [f"g{c.consumers}", *(["resident"] if c.resident else [])]
    if c.family is not Family.POOL:
        words += [f"s{c.stages}"]
    words += [c.schedule.name] if c.schedule is not Schedule.NONE else []
    words += [c.iterator.name] if c.iterator is not Iterator.NONE else []
    return "_".join([*words, *instance.chain]).lower()


def render_unit(instances: Sequence[Instance]) -> str:
    """One translation unit that registers `instances`, all of one family and architecture, in
    the order given."""
    targets = {(instance.config.family, instance.config.arch) for instance in instances}
    if len(targets) != 1:
        raise ValueError(
            f"a translation unit holds one family and architecture, not {sorted(targets)}"
        )
    if len(set(instances)) != len(instances):
        raise ValueError("an instance appears twice in a translation unit")
    family = instances[0].config.family.name.lower()
    return render(
        f"{family}/unit.cu.j2",
        header=f"{family}.h",
        kernels=[_fields(instance) for instance in instances],
    )


def render(template: str, **values: object) -> str:
    """A template of templates/ with its values.

    A value that the template lacks is an error. Raises ValueError for one with a character that
    names, numbers and types do not have: values are checked where they enter (checks.py), this sees
    to it that none was forgotten.
    """
    return _environment().get_template(template).render(values)


def _fields(instance: Instance) -> dict[str, str | bool]:
    """What the templates read of an instance."""
    return {
        "name": instance_name(instance),
        "key": instance.key,
        "row": ", ".join(str(number) for number in instance.config.row()),
        "element": instance.dtype.storage,
        "output": instance.out.storage,
        "steps": _functors([step for step in instance.chain if EPILOGUES[step].functor]),
        "stores": STORE in instance.chain,
        "layers": ", ".join(
            f"onnxbolt::epilogue::Chain<{_functors(layer)}>" for layer in layers(instance.chain)
        ),
    }


def _functors(steps: Sequence[str]) -> str:
    return ", ".join(f"onnxbolt::epilogue::{EPILOGUES[step].functor}" for step in steps)


def _shape(extents: tuple[int, ...]) -> str:
    return "x".join(str(extent) for extent in extents)


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
