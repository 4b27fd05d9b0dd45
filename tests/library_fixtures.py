"""A library for a machine without GPU: the product's C++ side, kernels for the CPU, and a CUDA
runtime that tests fill in.

It is built through the product's own cache and toolchain; what differs is the units that hold the
kernels, the provider that its ops are registered for, and the CUDA runtime that it is linked with.
"""

from __future__ import annotations

import ctypes
import shlex
import subprocess
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxbolt import ops
from onnxbolt.codegen.artifacts import Unit, compile_units
from onnxbolt.codegen.nvcc import find_toolchain
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType, IndexType
from onnxbolt.epilogues import MEAN, PRODUCT, ROTATE, STORE, Step
from onnxbolt.families import Family, KernelConfig, named
from onnxbolt.families.base import Schedule
from onnxbolt.families.blocks.mma_sync import Walk
from onnxbolt.families.row import SLOTS
from onnxbolt.library import (
    Manifest,
    generated_sources,
    make_manifest,
    metadata_of,
    runtime_sources,
)
from onnxbolt.ops.base import Part, Signature
from onnxbolt.ops.deformable_attention.pattern import Attended
from onnxbolt.ops.functions import DOMAIN
from onnxbolt.ops.functions import build as build_body
from onnxbolt.ops.grid_sample import Grid
from onnxbolt.ops.group_norm import Variant
from onnxbolt.ops.norm import (
    HeadLayerNorm,
    HeadRmsNorm,
    Heads,
    Lookups,
    ModulatedLayerNorm,
    ModulatedRmsNorm,
    Modulation,
)
from onnxbolt.opspec import OpSpec
from onnxbolt.sampling import Sampling

HOST = Path(__file__).with_name("custom_ops") / "host"
OPSET = 17
ARGUMENTS = {
    named("gemm_2x"): "GemmArguments",
    named("conv_2x"): "ConvArguments",
    named("conv3d_sm90"): "ConvArguments",
    named("conv_transpose_sm90"): "ConvArguments",
    named("pool"): "PoolArguments",
    named("stem_sm90"): "ConvArguments",
    named("layout"): "LayoutArguments",
    named("elementwise"): "ElementwiseArguments",
    named("squeeze_excite"): "SqueezeExciteArguments",
    named("norm"): "NormArguments",
    named("group_norm"): "GroupNormArguments",
    named("b2b_gemm_sm90"): "ChainArguments",
    named("b2b_stored_sm90"): "ChainArguments",
    named("b2b_conv_sm90"): "ConvChainArguments",
    named("resize"): "ResizeArguments",
    named("pixel_shuffle"): "PixelShuffleArguments",
    named("grid_sample"): "GridSampleArguments",
    named("gemm_rows_sm90"): "GemmArguments",
    named("quantized_gemm_sm90"): "QuantizedGemmArguments",
    named("quantized_conv_sm90"): "QuantizedConvArguments",
    named("gemm_sm90"): "host::GatedArguments",
    named("conv_sm90"): "host::MeanArguments",
    named("attention"): "AttentionArguments",
}


# a model with one fused node, and its inputs' shapes
Case = tuple[ModelProto, Sequence[tuple[int, ...]]]
_MMA = {"tile": (128, 64, 32), "warp": (64, 32, 32), "instruction": (16, 8, 16), "stages": 3}
_ROWS = {"rows": 128, "columns": 64, "depth": 32, "stages": 3, "consumers": 2, "resident": False}
_SM90 = {"rows": 128, "columns": 64, "k": 32, "schedule": Schedule.COOPERATIVE, "consumers": 2}
# fields of a family's configuration that are not defaults
FIELDS: dict[str, dict[str, Any]] = {
    "gemm_2x": _MMA,
    "conv_2x": {**_MMA, "walk": Walk.OPTIMIZED},
    "stem_sm90": {
        "pixels": 128,
        "columns": 64,
        "depth": 32,
        "filter": (3, 3, 3),
        "strides": (2, 2),
        "consumers": 2,
    },
    "b2b_gemm_sm90": {**_ROWS, "tma_rows": True, "later": (64, 0, 0)},
    "b2b_stored_sm90": {**_ROWS, "last_columns": 64},
    "b2b_conv_sm90": {**_SM90, "later": (64, 0, 0)},
    "gemm_rows_sm90": {**_ROWS, "tma_rows": False},
    "conv_sm90": _SM90,
    "conv3d_sm90": _SM90,
    "conv_transpose_sm90": _SM90,
    "gemm_sm90": _SM90,
    "norm": {"rows": 4, "lanes": 32, "vectors": 3, "access": 8},
    "group_norm": {"threads": 256, "access": 8, "resident": True},
    "attention": {
        "queries": 64,
        "keys": 64,
        "size": 64,
        "value_size": 64,
        "rows": 16,
        "instruction": (16, 8, 16),
        "stages": 2,
        "access": 8,
    },
}


def config(family: Family[Any], arch: int = 80, **changes: Any) -> KernelConfig:
    """One that serves every m."""
    fields = {"arch": arch, **FIELDS.get(family.name, {}), **changes}
    made: KernelConfig = family.config(**fields)
    return made


class Fused:
    """An op type of the tests: its description, its body, and its family of kernels."""

    def __init__(
        self,
        kind: str,
        *steps: Step,
        rank: int = 0,
        family: Family[Any] | None = None,
        padding: int = 0,
        nchw_input: DType | None = None,
        variant: Hashable = None,
        part: Part = Part.WHOLE,
        sliced: bool = False,
        to_nchw: bool = False,
    ) -> None:
        self.family = family or named("pool")
        # fields of its kernels' configurations that are not those of the family's other ops
        self.fields = {"modulation": 1 + variant.gated} if isinstance(variant, Modulation) else {}
        signature = Signature(
            ops.named(kind),
            DType.F32,
            rank,
            steps,
            padding,
            nchw_input,
            variant,
            part,
            sliced,
            to_nchw,
        )
        self.body = build_body(signature, OPSET)
        self.spec = OpSpec(
            self.body.name,
            kind,
            DType.F32,
            DType.F32,
            tuple(step.name for step in steps),
            nchw_input,
            part is Part.NEXT,
            to_nchw,
            signature.op.letters(signature),
            signature.op.indices(signature),
        )

    @property
    def arguments(self) -> str:
        """The structure that its kernels take."""
        op = ops.named(self.spec.kind)
        if isinstance(op, HeadLayerNorm | HeadRmsNorm):
            return "HeadNormArguments"
        modulated = isinstance(op, ModulatedLayerNorm | ModulatedRmsNorm)
        return "ModulatedNormArguments" if modulated else ARGUMENTS[self.family]


GEMM = Fused("gemm", Step("Bias"), Step("Relu"), family=named("gemm_2x"))
GEMM_ROWS = Fused("gemm", Step("Bias"), Step("Relu"), family=named("gemm_rows_sm90"), padding=3)
GLU = Fused("glu", Step("Bias"), Step("Relu"), Step("GateBias"), family=named("gemm_sm90"))
BATCHED = Fused("batched_gemm", Step("Bias"), Step("Add"), Step("Relu"), family=named("gemm_2x"))
ROTARY = Fused("rotary", Step("Bias"), Step("Rotate"), family=named("gemm_2x"))
GEMM_ADD = Fused(
    "gemm", Step("Bias"), Step("Add"), Step("LeakyRelu", (0.25,)), family=named("gemm_2x")
)
CONV = Fused("conv", Step("Bias"), Step("Add"), Step("Relu"), rank=4, family=named("conv_2x"))
FIRST = Fused(
    "conv", Step("Bias"), Step("Relu"), rank=4, family=named("stem_sm90"), nchw_input=DType.F32
)
LAST, LAST_1D = (
    Fused(kind, Step("Bias"), Step("Relu"), rank=rank, family=named("conv_2x"), to_nchw=True)
    for kind, rank in (("conv", 4), ("conv1d", 3))
)
MEAN_STEPS = (Step("Bias"), Step("Add"), Step("Relu"), Step(MEAN))
CONV_MEAN = Fused("conv", *MEAN_STEPS, rank=4, family=named("conv_sm90"))
_LAYERS = (Step("Bias"), Step("Relu"), Step(PRODUCT), Step("Bias"))
BOTH, BOTH_1D = (
    Fused(
        kind,
        Step("Bias"),
        Step("Relu"),
        Step(STORE),
        rank=rank,
        family=named("conv_2x"),
        padding=3,
        to_nchw=True,
    )
    for kind, rank in (("conv", 4), ("conv1d", 3))
)
GEMM_CHAIN = Fused("gemm_chain", *_LAYERS, Step("Relu"), family=named("b2b_gemm_sm90"))
GEMM_CHAIN_PADDED = Fused(
    "gemm_chain", *_LAYERS, Step("Add"), Step("Relu"), family=named("b2b_gemm_sm90"), padding=3
)
CONV_CHAIN = Fused(
    "conv_chain", *_LAYERS, Step("Add"), Step("Relu"), rank=4, family=named("b2b_conv_sm90")
)
_STORED = (
    Step("Bias"),
    Step("Add"),
    Step("Relu"),
    Step(STORE),
    Step(PRODUCT),
    Step("Bias"),
    Step("Relu"),
)
GEMM_STORED = Fused("gemm_chain", *_STORED, family=named("b2b_stored_sm90"))
CONV_STORED = Fused("conv_chain", *_STORED, rank=4, family=named("b2b_stored_sm90"))
_INNER = tuple(step for step in _STORED if step.name != STORE)  # with a residual between the layers
GEMM_INNER = Fused("gemm_chain", *_INNER, family=named("b2b_stored_sm90"))
CONV_INNER = Fused("conv_chain", *_INNER, rank=4, family=named("b2b_stored_sm90"))
CONV_1D = Fused("conv1d", Step("Bias"), Step("Relu"), rank=3, family=named("conv_2x"))
CONV_3D, CONV_3D_OF_IMAGES = (
    Fused("conv3d", Step("Bias"), Step("Add"), activation, rank=5, family=named(family))
    for activation, family in (
        (Step("LeakyRelu", (0.25,)), "conv3d_sm90"),
        (Step("Relu"), "conv_2x"),
    )
)
TRANSPOSED, TRANSPOSED_1D, TRANSPOSED_3D = (
    Fused(
        kind,
        Step("Bias"),
        Step("Add"),
        Step("LeakyRelu", (0.25,)),
        rank=rank,
        family=named("conv_transpose_sm90"),
    )
    for kind, rank in (("conv_transpose", 4), ("conv_transpose1d", 3), ("conv_transpose3d", 5))
)
TRANSPOSED_ROWS = Fused(
    "conv_transpose1d",
    Step("Bias"),
    Step("Add"),
    Step("Relu"),
    rank=3,
    family=named("conv_2x"),
)
MAX_POOL, AVERAGE_POOL, GLOBAL_POOL = (
    Fused("max_pool"),
    Fused("average_pool"),
    Fused("global_average_pool"),
)
MAX_POOL_3D, AVERAGE_POOL_3D, GLOBAL_POOL_3D = (
    Fused(kind, rank=5) for kind in ("max_pool", "average_pool", "global_average_pool")
)
MAX_POOL_1D, AVERAGE_POOL_1D, GLOBAL_POOL_1D = (
    Fused(kind, rank=3) for kind in ("max_pool", "average_pool", "global_average_pool")
)
TO_NHWC, TO_NCHW = (
    Fused(kind, rank=4, family=named("layout"), padding=3) for kind in ("to_nhwc", "to_nchw")
)
TO_NLC = Fused("to_nhwc", rank=3, family=named("layout"))
ELEMENTWISE = Fused(
    "elementwise",
    Step("Bias"),
    Step("Add"),
    Step("LeakyRelu", (0.25,)),
    family=named("elementwise"),
)
LAYER_NORM = Fused(
    "layer_norm", Step("Add"), Step(STORE), Step("Scale"), Step("Bias"), family=named("norm")
)
TOKEN_STEPS = (Step("Add"), Step(STORE), Step("Scale"), Step("Bias"))
TOKEN_NORM = Fused("token_layer_norm", *TOKEN_STEPS, family=named("norm"), variant=2)
TOKEN_RMS_NORM = Fused("token_rms_norm", Step("Add"), Step("Scale"), family=named("norm"))
MODULATED_NORM = Fused(
    "modulated_layer_norm", *TOKEN_STEPS, family=named("norm"), variant=Modulation(gated=True)
)
MODULATED_RMS_NORM = Fused(
    "modulated_rms_norm", Step("Scale"), family=named("norm"), variant=Modulation(gated=False)
)
EMBEDDING_NORM = Fused(
    "embedding_layer_norm",
    *TOKEN_STEPS,
    family=named("norm"),
    variant=Lookups(IndexType.I64, 2),
)
EMBEDDING_RMS_NORM = Fused(
    "embedding_rms_norm",
    Step("Scale"),
    family=named("norm"),
    variant=Lookups(IndexType.I32, 1),
)
HEAD_NORM = Fused(
    "head_layer_norm",
    Step("Scale"),
    Step("Bias"),
    family=named("norm"),
    variant=Heads(whole=False, joined=False),
)
ROTATED_HEAD_NORM = Fused(
    "head_rms_norm",
    Step("Scale"),
    Step(ROTATE),
    family=named("norm"),
    variant=Heads(whole=True, joined=True),
)
RMS_NORM = Fused("rms_norm", Step("Scale"), family=named("norm"))
GROUP_NORM, GROUP_NORM_1D, GROUP_NORM_3D, GROUP_NORM_OF_IMAGES = (
    Fused(
        "group_norm",
        *steps,
        rank=rank,
        family=named("group_norm"),
        variant=Variant(before=of_images, modulated=of_images),
    )
    for rank, of_images, steps in (
        (4, False, (Step("Bias"), Step("Add"), Step("LeakyRelu", (0.25,)))),
        (3, False, ()),
        (5, True, ()),
        (4, True, (Step("LeakyRelu", (0.25,)),)),
    )
)
SQUEEZE_EXCITE = Fused(
    "squeeze_excite",
    Step("LeakyRelu", (0.25,)),
    Step("LeakyRelu", (0.5,)),
    rank=4,
    family=named("squeeze_excite"),
)
SQUEEZE_EXCITE_ADD = Fused(
    "squeeze_excite",
    Step("LeakyRelu", (0.25,)),
    Step("LeakyRelu", (0.5,)),
    Step("Add"),
    rank=4,
    family=named("squeeze_excite"),
)
NEAREST = Fused(
    "resize",
    rank=4,
    family=named("resize"),
    variant=Sampling("nearest", "asymmetric", "floor", "sizes"),
)
LINEAR = Fused(
    "resize",
    rank=4,
    family=named("resize"),
    variant=Sampling("linear", "half_pixel", "round_prefer_floor", "scales"),
)
CUBIC = Fused(
    "resize",
    rank=4,
    family=named("resize"),
    variant=Sampling("cubic", "half_pixel", "round_prefer_floor", "scales"),
)
TO_SPACE, TO_SPACE_BY_CHANNEL, TO_DEPTH = (
    Fused(kind, *steps, rank=4, family=named("pixel_shuffle"), variant=mode, sliced=sliced)
    for kind, mode, sliced, steps in (
        ("depth_to_space", "DCR", True, ()),
        ("depth_to_space", "CRD", False, (Step("Bias"), Step("Add"), Step("LeakyRelu", (0.25,)))),
        ("space_to_depth", "DCR", False, (Step("Add"), Step("Relu"))),
    )
)
SAMPLED = Fused(
    "grid_sample",
    rank=4,
    family=named("grid_sample"),
    variant=Grid("linear", "zeros", False, True),
)
DEFORMABLE = Fused(
    "deformable_attention",
    family=named("grid_sample"),
    variant=Attended(2, 3, (4, 5, 2, 3), 2, Grid("linear", "zeros", False, True)),
)
SUMMED, LIKE, GIVEN = (
    Fused(
        "resize",
        *steps,
        rank=4,
        family=named("resize"),
        variant=Sampling(mode, coordinates, rounding, by),
    )
    for mode, coordinates, rounding, by, steps in (
        (
            *("nearest", "asymmetric", "floor", "scales"),
            (Step("Bias"), Step("Add"), Step("LeakyRelu", (0.25,))),
        ),
        (*("linear", "half_pixel", "round_prefer_floor", "like"), (Step("Add"), Step("Relu"))),
        (*("linear", "asymmetric", "round_prefer_floor", "given"), ()),
    )
)
ALL = (
    LAYER_NORM,
    RMS_NORM,
    GROUP_NORM,
    GROUP_NORM_1D,
    GROUP_NORM_3D,
    GROUP_NORM_OF_IMAGES,
    SQUEEZE_EXCITE,
    SQUEEZE_EXCITE_ADD,
    ELEMENTWISE,
    GEMM,
    GEMM_ADD,
    CONV,
    FIRST,
    LAST,
    LAST_1D,
    CONV_1D,
    CONV_3D,
    CONV_3D_OF_IMAGES,
    TRANSPOSED,
    TRANSPOSED_1D,
    TRANSPOSED_ROWS,
    MAX_POOL,
    AVERAGE_POOL,
    GLOBAL_POOL,
    TO_NHWC,
    TO_NCHW,
    TO_NLC,
    NEAREST,
    LINEAR,
    CUBIC,
    SUMMED,
    LIKE,
    GIVEN,
    TO_SPACE,
    TO_SPACE_BY_CHANNEL,
    TO_DEPTH,
    SAMPLED,
    DEFORMABLE,
    GEMM_CHAIN,
    GEMM_CHAIN_PADDED,
    CONV_CHAIN,
    GEMM_STORED,
    CONV_STORED,
    GEMM_INNER,
    CONV_INNER,
    GEMM_ROWS,
    GLU,
    TOKEN_NORM,
    TOKEN_RMS_NORM,
    MODULATED_NORM,
    MODULATED_RMS_NORM,
    EMBEDDING_NORM,
    EMBEDDING_RMS_NORM,
    ROTARY,
    BATCHED,
)


def fused_model(
    fused: Fused,
    x: Sequence[int | str],
    weight: Sequence[int] = (),
    operands: Sequence[Sequence[Any]] = (),
    *,
    rank: int = 0,
    rows: Sequence[KernelConfig] | None = None,
    digest: str = "",
    **attributes: Any,
) -> ModelProto:
    """One fused node between graph inputs x, tensor operands and its outputs; weight and vector
    operands are initializers."""
    random = np.random.default_rng(0)
    indices = fused.spec.indices.onnx if fused.spec.indices else 0
    inputs = [helper.make_tensor_value_info("x", indices or TensorProto.FLOAT, x)]
    names, initializers = ["x"], []
    if weight:
        operands = [list(weight), *operands]
    for i, shape in enumerate(operands):
        names.append(name := f"operand{i}" if weight else f"input{i}")
        if not weight and fused.spec.operands[i] == "n":
            inputs.append(helper.make_tensor_value_info(name, indices, shape))
        elif not weight and fused.spec.operands[i] == "s":
            inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, shape))
        elif len(shape) == 1 or (weight and i == 0):
            initializers.append(
                numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)
            )
        else:
            inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    rows = rows or [config(fused.family, **fused.fields)]
    attributes = {"format": 1, "configs": [n for row in rows for n in row.row()], **attributes}
    node = helper.make_node(
        fused.spec.name, names, list(fused.body.output), "the node", domain=DOMAIN, **attributes
    )
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * (rank or len(x)))
        for name in node.output
    ]
    graph = helper.make_graph([node], "graph", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, functions=[fused.body], opset_imports=opsets, ir_version=8)
    manifest = Manifest((fused.spec,), (), (80,), digest)
    helper.set_model_props(model, metadata_of(manifest, "keep", (80,)))
    return model


class HostLibrary:
    """A built library and what its stand-ins for kernels and CUDA can be asked and told."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest
        self._library = ctypes.CDLL(str(path))
        self._library.host_launches.restype = self._library.host_last_max_m.restype = ctypes.c_int64
        self._library.host_copies.restype = ctypes.c_int64

    def machine(
        self,
        *,
        error: int = 0,
        driver: int = 13000,
        runtime: int = 13000,
        count: int = 1,
        sm: int = 80,
        shared_memory: int = 166912,
    ) -> None:
        """The CUDA runtime's answers about this machine; without arguments, one A100."""
        self._library.host_set_machine(
            (ctypes.c_int * 7)(error, driver, runtime, count, sm // 10, sm % 10, shared_memory)
        )

    def limit(self, rows: int = 2**62) -> None:
        """Make kernels refuse more rows of a product, or more images."""
        self._library.host_limit(ctypes.c_int64(rows))

    def fail(self, *, prepare: bool = False, launch: bool = False) -> None:
        """Make kernels fail."""
        self._library.host_fail(int(prepare), int(launch))

    @property
    def launches(self) -> int:
        """Kernels run so far."""
        return int(self._library.host_launches())

    @property
    def copies(self) -> int:
        """Tensors copied so far."""
        return int(self._library.host_copies())

    @property
    def last_max_m(self) -> int:
        """max_m of the row that was last launched: tells rows apart."""
        return int(self._library.host_last_max_m())

    @property
    def last_slices(self) -> int:
        """Slices of a volume of y, of the last convolution or pooling; 0 if that was one of
        images."""
        return int(self._library.host_last_slices())

    @property
    def last_pads(self) -> list[int]:
        """Top, left, bottom and right, of the last convolution or pooling."""
        return [int(self._library.host_last_pad(side)) for side in range(4)]


def host_library(
    path: Path,
    ops: Sequence[Fused] = ALL,
    archs: Sequence[int] = (80,),
    shared_memory: int = 0,
    provider: str = "CPUExecutionProvider",
    without: Sequence[Fused] = (),
) -> HostLibrary:
    """Build a library with one kernel for each op type and architecture, but for those op types
    that are to be `without`."""
    kernels = [
        (
            op.arguments,
            Instance(config(op.family, arch, **op.fields), DType.F32, DType.F32, op.spec.steps),
        )
        for op in ops
        if op not in without
        for arch in archs
    ]
    manifest = make_manifest((op.spec for op in ops), {instance for _, instance in kernels})
    return linked(path, manifest, kernels, shared_memory, provider)


def linked(
    path: Path,
    manifest: Manifest,
    kernels: Sequence[tuple[str, Instance]],
    shared_memory: int = 0,
    provider: str = "CPUExecutionProvider",
) -> HostLibrary:
    """Build a library of a manifest with these kernels, each with the structure that it takes."""
    text = '#include "kernels.h"\nusing namespace onnxbolt;\n'
    for i, (arguments, instance) in enumerate(kernels):
        row = instance.config
        numbers = ", ".join(str(number) for number in row.row())
        launch = sum(1 << SLOTS.index(slot) for slot in row.family.at_launch)
        text += (
            f'static host::HostKernel<{arguments}> kernel{i}("{instance.key}", {shared_memory},'
            f" {launch}, {{{numbers}}}, {instance.dtype.onnx}, {instance.out.onnx});\n"
        )
    units = [
        Unit("manifest.cc", generated_sources(manifest)["manifest.cc"]),
        _host_unit("kernels.cc", text),
    ]
    units += [_host_unit(name, (HOST / name).read_text()) for name in ("cuda.cc", "control.cc")]
    # the other sources are compiled once for all libraries
    define = {"fused_op.cc": f'#define ONNXBOLT_PROVIDER "{provider}"\n'}
    units += [
        Unit(source.name, define.get(source.name, "") + source.read_text())
        for source in runtime_sources()
    ]
    toolchain = find_toolchain()
    objects = [str(file) for file in compile_units(units, toolchain)]
    command = [
        str(toolchain.nvcc),
        "-shared",
        "-nodlink",
        "-cudart=none",
        *objects,
        "-o",
        str(path),
    ]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, f"{shlex.join(command)}\n{result.stderr}"
    return HostLibrary(path, manifest)


def _host_unit(name: str, text: str) -> Unit:
    # the header goes into the text, so that the cache sees it
    return Unit(name, text.replace('#include "kernels.h"', (HOST / "kernels.h").read_text()))
