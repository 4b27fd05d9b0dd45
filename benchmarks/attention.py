"""Attention against PyTorch's scaled_dot_product_attention, in fp16, in one run.

    # all rows; writes results/attention-<gpu>.json
    python -m benchmarks.attention
    python -m benchmarks.attention --rows "ViT-B b32,Swin s1" --families attention --verbose
    # only compiles the kernels, for which no GPU is needed
    python -m benchmarks.attention --build

The peer is the fastest one of PyTorch's backends (flash, cuDNN, memory-efficient, math) with the
cheapest form of the same mask: a boolean one, or one that is added, its rows aligned or not, of its
own sizes or expanded; `values` has all of them, and flash attention of sequences without their
padding. Operands are [B, S, H, D] in memory and the same in all launches, as behind the kernel that
wrote them. Every configuration of the planner is timed, of all families that solve the problem: the
fastest takes turns with the peers. One clock times both sides (benchmarks/peers.py): CUDA graphs of
a millisecond, in which our launches overlap one another as they do in a model. Answers are compared
with fp32 first.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import peers
from benchmarks.common import ClockSampler, Row
from benchmarks.kernels import Kernel, compile_all, kernels, measured_rows, parser
from benchmarks.racing import against, fastest, medians, say, take_turns
from onnxbolt.archs import Arch, get
from onnxbolt.dtypes import DType
from onnxbolt.errors import OnnxboltError
from onnxbolt.families import KernelConfig, candidates
from onnxbolt.inspection import describe
from onnxbolt.plan.cost import floor_us
from onnxbolt.problems import AttentionProblem
from onnxbolt.problems.attention import BAND_LEAST, BAND_MOST

PADDED, BIASED, CAUSAL = "key padding", "bias", "causal"
VARLEN = "flash, without padding"
# name, mask, batch, heads, length, size
_ROWS = (
    ("ViT-B b1", "", 1, 12, 197, 64),
    ("ViT-B b32", "", 32, 12, 197, 64),
    ("ViT-L b8", "", 8, 16, 197, 64),
    ("DINOv2-B b32", "", 32, 12, 257, 64),
    ("BERT 32x40", PADDED, 32, 12, 40, 64),
    ("BERT 32x128", PADDED, 32, 12, 128, 64),
    ("BERT 8x384", PADDED, 8, 12, 384, 64),
    ("bge-large 32x512", PADDED, 32, 16, 512, 64),
    ("CLIP text 32x77", CAUSAL, 32, 8, 77, 64),
    ("Whisper-S 4x1500", "", 4, 12, 1500, 64),
    ("Swin s1 b16", BIASED, 1024, 3, 49, 32),
    ("Swin s3 b16", BIASED, 64, 12, 49, 32),
    ("Swin s4 b16", BIASED, 16, 24, 49, 32),
    ("SDXL 2x4096", "", 2, 10, 4096, 64),
    ("SDXL 2x1024", "", 2, 20, 1024, 64),
    ("SD15 2x4096 d40", "", 2, 8, 4096, 40),
    ("LLM 1x2048 d128", CAUSAL, 1, 32, 2048, 128),
    ("8x1024 d128", "", 8, 16, 1024, 128),
)
_KINDS = {"": 0, BIASED: 1, PADDED: 2}  # Masking in custom_ops/ops/attention/arguments.h
_LIMIT = 2e-3  # relative error
_ALIGNED = 16  # elements; PyTorch copies masks whose rows begin elsewhere
_SHORTEST = 0.5  # padded sequences have from this part of the length on
_FEW = 5  # samples of each configuration
_FASTEST_SHOWN = 6
_BUILT_FOR = 90  # architecture of --build

_I, _L, _P, _F = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p, ctypes.c_float


class Heads(ctypes.Structure):
    """HeadsView and HeadsOutput (custom_ops/ops/attention/arguments.h)."""

    _fields_ = (("data", _P), ("batch", _L), ("row", _L), ("head", _L))


class Mask(ctypes.Structure):
    """ScoreMask."""

    _fields_ = (
        ("kind", _I),
        ("fp32", ctypes.c_bool),
        ("data", _P),
        *((name, _L) for name in ("batch", "head", "query", "key")),
        ("period", _I),
    )


class Windows(ctypes.Structure):
    """Windows."""

    _fields_ = tuple(
        (name, _I)
        for name in ("height", "width", "window_height", "window_width", "shift_y", "shift_x")
    )


class Attention(ctypes.Structure):
    """AttentionArguments."""

    _fields_ = (
        *((n, _I) for n in ("batch", "heads", "key_heads", "queries", "keys", "size")),
        ("value_size", _I),
        ("scale", _F),
        *((name, Heads) for name in ("q", "k", "v", "y")),
        ("mask", Mask),
        *((name, _I) for name in ("masked", "first", "last", "shift")),
        ("windows", Windows),
    )


@dataclass(frozen=True)
class Case:
    """A row: a problem, and the kind of its mask."""

    name: str
    mask: str
    problem: AttentionProblem


def cases() -> list[Case]:
    """Those of all rows."""
    return [Case(name, mask, _problem(mask, *sizes)) for name, mask, *sizes in _ROWS]


def _problem(mask: str, batch: int, heads: int, length: int, size: int) -> AttentionProblem:
    words: dict[str, dict[str, Any]] = {
        PADDED: {"mask": ("kept",), "mask_shape": (batch, 1, 1, length)},
        BIASED: {"mask": ("added", "f16"), "mask_shape": (1, heads, length, length)},
        CAUSAL: {"band": (BAND_LEAST, 0, 0)},
    }
    sizes = (batch, heads, heads, length, length, size, size)
    return AttentionProblem(*sizes, DType.F16, DType.F16, **words.get(mask, {}))


def configurations(
    problem: AttentionProblem, arch: Arch, families: Sequence[str] = ()
) -> list[KernelConfig]:
    """The planner's, of some families or of all."""
    found = candidates(problem, arch)
    return [config for config in found if not families or config.family.name in families]


@dataclass(frozen=True)
class Tensors:
    """The tensors of a row on the device; q, k, v and y are [B, S, H, D]."""

    case: Case
    qkv: Any  # three times
    y: Any
    mask: Any  # None, or of mask_shape
    lengths: Any  # None, or each sequence's number of keys

    @classmethod
    def of(cls, case: Case) -> Tensors:
        """Random ones."""
        torch, problem = peers.pytorch(), case.problem
        shape = (problem.batch, problem.queries, problem.heads, problem.size)
        qkv, mask, lengths = peers.normal((3, *shape), problem.dtype), None, None
        if case.mask == BIASED:
            mask = peers.normal(problem.mask_shape, problem.dtype)
        if case.mask == PADDED:
            part = torch.linspace(_SHORTEST, 1, problem.batch, device="cuda")
            lengths = (part * problem.keys).round().int()
            kept = torch.arange(problem.keys, device="cuda") < lengths[:, None]
            mask = kept.reshape(problem.mask_shape)
        return cls(case, qkv, torch.empty_like(qkv[0]), mask, lengths)

    @functools.cached_property
    def arguments(self) -> Attention:
        """A kernel's arguments."""
        problem, mask = self.case.problem, Mask()
        mask.kind = _KINDS.get(self.case.mask, 0)
        if self.mask is not None:
            size = (problem.batch, problem.heads, problem.queries, problem.keys)
            mask.data = self.mask.data_ptr()
            mask.batch, mask.head, mask.query, mask.key = self.mask.expand(size).stride()
        views = [Heads(x.data_ptr(), *x.stride()[:3]) for x in (*self.qkv, self.y)]
        first, last, shift = problem.band or (BAND_LEAST, BAND_MOST, 0)
        heads = (problem.batch, problem.heads, problem.key_heads)
        sizes = (problem.queries, problem.keys, problem.size, problem.value_size)
        scale = problem.size**-0.5
        return Attention(*heads, *sizes, scale, *views, mask, 0, first, last, shift)

    def error(self) -> float:
        """The relative error of what y holds now, of the first and the last batch."""
        torch, picked = peers.pytorch(), sorted({0, self.case.problem.batch - 1})
        q, k, v = (x[picked].movedim(1, 2).float() for x in self.qkv)
        scores = q @ k.transpose(2, 3) * self.case.problem.size**-0.5
        if self.case.mask == BIASED:
            scores = scores + self.mask.float()
        elif self.case.mask == PADDED:
            scores = scores.masked_fill(~self.mask[picked], -math.inf)
        elif self.case.mask == CAUSAL:
            after = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(after, -math.inf)
        expected = (scores.softmax(-1) @ v).movedim(1, 2)
        return float((self.y[picked].float() - expected).norm() / expected.norm())

    def peers(self) -> dict[str, peers.Operation]:
        """Those of PyTorch's ways that compute the problem; a line says why another one does
        not."""
        found = {}
        for name, run in self._ways():
            try:
                run(0)
            except RuntimeError as error:  # a backend that does not take the mask or the size
                say(f"  PyTorch, {name}: {str(error).splitlines()[0]}")
            else:
                found[name] = peers.Operation(run, 1)
        peers.pytorch().cuda.synchronize()
        return found

    def _ways(self) -> Iterator[tuple[str, Callable[[int], Any]]]:
        from torch.nn.attention import SDPBackend

        backends = {
            "flash": SDPBackend.FLASH_ATTENTION,
            "cuDNN": SDPBackend.CUDNN_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION,
            "math": SDPBackend.MATH,
        }
        masks = self._forms_of_mask()
        for name, backend in backends.items():
            for form, mask in masks.items():
                way = functools.partial(self._attend, backend, mask)
                yield f"{name} {form}".strip(), way
        if self.lengths is not None:
            yield VARLEN, self._without_padding()

    def _forms_of_mask(self) -> dict[str, Any]:
        """The mask as PyTorch takes it; each form is the fastest somewhere."""
        torch, problem = peers.pytorch(), self.case.problem
        if self.mask is None:
            return {"": None}
        forms = {"added": self.mask}
        if self.case.mask == PADDED:
            added = torch.where(self.mask, 0.0, -math.inf).to(self.y.dtype)
            forms = {"boolean": self.mask, "added": added}
        if short := -problem.keys % _ALIGNED:
            padded = torch.nn.functional.pad(forms["added"], (0, short))
            forms["added, aligned rows"] = padded[..., : problem.keys]
        size = (problem.batch, problem.heads, problem.queries, problem.keys)
        return forms | {f"{form}, expanded": mask.expand(size) for form, mask in forms.items()}

    def _attend(self, backend: Any, mask: Any, i: int) -> Any:
        torch = peers.pytorch()
        q, k, v = (x.transpose(1, 2) for x in self.qkv)
        with torch.nn.attention.sdpa_kernel([backend]):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, mask, is_causal=self.case.mask == CAUSAL
            )

    def _without_padding(self) -> Callable[[int], Any]:
        """Flash attention of the sequences' own positions, which lie one behind the other."""
        torch = peers.pytorch()
        kept = torch.arange(self.case.problem.keys, device="cuda") < self.lengths[:, None]
        q, k, v = (x[kept] for x in self.qkv)
        ends = torch.nn.functional.pad(self.lengths.cumsum(0), (1, 0)).int()
        longest = int(self.lengths.max())
        attend = torch.ops.aten._flash_attention_forward
        return lambda i: attend(q, k, v, ends, ends, longest, longest, 0.0, False, False)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    found = [case for case in cases() if not chosen.rows or case.name in chosen.rows]
    if chosen.build:
        arch, families = get(_BUILT_FOR), chosen.families
        return compile_all(
            (case.problem, config)
            for case in found
            for config in configurations(case.problem, arch, families)
        )
    rows = measured_rows(
        "attention",
        (functools.partial(_survive, case, chosen=chosen) for case in found),
        chosen,
        [(case.name, case.problem.batch) for case in cases()],
        _line,
    )
    if rows is None:
        return 1
    ratios = [row.ratio for row in rows if row.ratio]
    if ratios:
        say(f"geometric mean {statistics.geometric_mean(ratios):.3f}, least {min(ratios):.3f}")
    return 0


def _line(row: Row) -> str:
    if row.ours_us is None:
        return f"{row.name}: {row.values['failure']}"
    return f"{row.name}: {row.ours_us} us, {row.peer} {row.peer_us}, {row.ratio}; {row.config}"


def _survive(case: Case, arch: Arch, chosen: argparse.Namespace) -> Row:
    """The row, or one with the reason why there is none: the other rows are still to be
    measured."""
    try:
        return _measured(case, arch, chosen)
    except (OnnxboltError, RuntimeError) as error:
        values = {"failure": f"{type(error).__name__}: {error}"[:500]}
        return Row(case.name, case.problem.batch, "fp16", values=values)


def _measured(case: Case, arch: Arch, chosen: argparse.Namespace) -> Row:
    tensors, wrong = Tensors.of(case), 0
    times: dict[Kernel, float] = {}
    for kernel in kernels(case.problem, configurations(case.problem, arch, chosen.families)):
        tensors.y.fill_(math.nan)
        operation = kernel.operation([tensors.arguments])
        us = statistics.median(operation.measure()(_FEW))
        if (error := tensors.error()) <= _LIMIT:
            times[kernel] = us
        else:
            wrong += 1
            say(f"  WRONG, error {error:.1e}: {describe(kernel.config)}")
    if not times:
        raise OnnxboltError(f"no kernel for {case.name} ran right")
    order = sorted(times, key=lambda kernel: times[kernel])
    for kernel in order if chosen.verbose else order[:_FASTEST_SHOWN]:
        predicted = kernel.config.family.predicted_us(case.problem, kernel.config, arch)
        say(f"  {times[kernel]:8.3f} us, predicted {predicted:8.3f}  {describe(kernel.config)}")
    return _raced(case, arch, tensors, order, wrong)


def _raced(case: Case, arch: Arch, tensors: Tensors, order: Sequence[Kernel], wrong: int) -> Row:
    """The fastest kernel, `order`'s first, in turns with PyTorch's ways."""
    best, problem = order[0], case.problem
    ours = best.operation([tensors.arguments])
    ways = {name: way.measure() for name, way in tensors.peers().items()}
    with ClockSampler() as clock:
        samples = take_turns({"ours": ours.measure(), **ways})
    tensors.y.fill_(math.nan)
    ours.run(0)
    others = {name: s for name, s in samples.items() if name not in ("ours", VARLEN)}
    peer = fastest(others)
    return Row(
        case.name,
        problem.batch,
        "fp16",
        **against(samples["ours"], samples[peer].median),
        peer=f"PyTorch, {peer}",
        floor_us=round(floor_us(problem, arch), 3),
        error=float(f"{tensors.error():.3e}"),
        clock_mhz=clock.mhz,
        config=describe(best.config),
        values={
            "shape": problem.shape,
            "mask": case.mask,
            "candidates": len(order) + wrong,
            "wrong": wrong,
            "peers_us": medians({name: s for name, s in samples.items() if name != "ours"}),
        },
    )


def _parser() -> argparse.ArgumentParser:
    options = parser((__doc__ or "").splitlines()[0])
    for option, what in (("--rows", "names of rows"), ("--families", "of kernels")):
        options.add_argument(
            option,
            type=lambda text: text.split(","),
            default=[],
            metavar="NAME,..",
            help=f"{what} (default: all)",
        )
    return options


if __name__ == "__main__":
    sys.exit(main())
