"""The interface of fused ops: what each stage asks an op.

| stage | asks |
|---|---|
| match | `anchors`, `continuations`, `combined`: the ONNX nodes that one fused node replaces |
| layout | `forms`: how x and the result are stored; `replacement` of an ordinary node |
| plan | `problem`: what a kernel solves |
| rewrite | `operation`: the node's inputs and attributes; `body`: it in standard operators |
| library | `kind_of`, `operands`: the node as C++ knows it |
| verify, report | `in_both_layouts`, `pieces`, `positions` |

Stages have the op from an anchor, a signature or a kind in a file; they name none.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
import onnx_graphsurgeon as gs
from onnx import NodeProto

from onnxbolt.archs import Arch
from onnxbolt.candidates import Anchor, Candidate, Link, Refusal
from onnxbolt.dtypes import DType, IndexType
from onnxbolt.epilogues import EPILOGUES, Step
from onnxbolt.families import KernelConfig, only
from onnxbolt.forms import PLAIN, Form
from onnxbolt.graph.edit import Derived
from onnxbolt.ops.body import AttributeType, Body
from onnxbolt.patterns.types import AnchorPattern, StepPattern
from onnxbolt.problems import Problem

# the sizes of a tensor as ONNX has it, symbolic ones replaced
Sizes: TypeAlias = Callable[[gs.Tensor], list[int]]


# --- tensors as stored ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Surroundings:
    """The graph around a candidate, as far as layout rules need it to choose forms."""

    x: Form  # the form in which x is written
    padded: bool = False  # the output's channels may be padded to accesses of 16 bytes
    archs: tuple[Arch, ...] = ()  # the kernels' architectures; one layout serves all of them
    to_nchw: bool = False  # the plan wants the output as NCHW


@dataclass(frozen=True)
class Stored:
    """How a candidate's tensors are stored: x, the output, and, if the kernel writes its result as
    NCHW as well, the tensor that this is."""

    reads: Form
    writes: Form
    both: gs.Tensor | None = None


# --- the node -------------------------------------------------------------------------------------


class Part(enum.Enum):
    """The part of its output that a node writes: all of it, or some channels, which lie as the
    attribute `around` says."""

    WHOLE = ""
    FIRST = "part"  # before all others: the other channels are not defined, zeros in the body
    NEXT = (  # the last input with these channels written, which are zeros in it or not defined
        "into"
    )

    @classmethod
    def of(cls, op_type: str) -> Part:
        """The part that a node of this op type writes, by the word that the type ends with."""
        parts = (part for part in cls if part.value and op_type.endswith(f"_{part.value}"))
        return next(parts, cls.WHOLE)


@dataclass(frozen=True)
class Signature:
    """All that a function body depends on: one op type has one.

    `rank` is that of x (0: any). `padding`: channels of zeros that a layout conversion appends or
    takes away (likewise a convolution that writes both forms), or columns of zeros that a GEMM's
    weight has beyond those of x. `nchw_input`: the type of x if a convolution reads it as NCHW.
    `to_nchw`: it writes y so. `variant`: what else an op's bodies differ in. `part`: what it writes
    of its output. `sliced`: x are some of its input's channels, those of the attribute `channels`.
    """

    op: FusedOp
    dtype: DType
    rank: int = 0
    steps: tuple[Step, ...] = ()
    padding: int = 0
    nchw_input: DType | None = None
    variant: Hashable = None
    part: Part = Part.WHOLE
    sliced: bool = False
    to_nchw: bool = False

    @property
    def into(self) -> bool:
        """True if the last input is what earlier nodes wrote of the output."""
        return self.part is Part.NEXT


@dataclass(frozen=True)
class Operation:
    """The computation of a node of our domain, and its inputs. The first input may be an excerpt of
    a variable (layout/places.py)."""

    signature: Signature  # its op type
    inputs: Sequence[gs.Tensor]
    attributes: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Replacement:
    """The node of ours that computes the same as an ordinary one."""

    attributes: Mapping[str, object] = field(default_factory=dict)
    variant: Hashable = None  # the signature's variant
    inputs: tuple[gs.Tensor, ...] = ()  # behind x, as they are stored


@dataclass(frozen=True)
class Described:
    """A node of ours as a written model describes it: shapes, in which a str is a symbolic
    dimension, and attributes."""

    output: Sequence[Any]
    inputs: Sequence[Sequence[Any]]
    attributes: Mapping[str, Any]
    chain: tuple[str, ...] = ()  # names of its steps
    to_nchw: bool = False  # the output is NCHW


Slices: TypeAlias = tuple[slice, ...]  # one for each of the first axes of a tensor


@dataclass(frozen=True)
class Piece:
    """A part of a node's computation, which the same node computes from parts of its inputs, with
    `attributes` in place of its own."""

    inputs: tuple[Slices, ...]
    output: Slices
    attributes: Mapping[str, Any] = field(default_factory=dict)


class Tensors(Protocol):
    """How an op names the inputs of its node."""

    def get(self, tensor: gs.Tensor, form: Form) -> gs.Tensor:
        """`tensor` as stored in `form`, converted once for all who read it."""

    def before_cast(self, stored: gs.Tensor) -> gs.Tensor:
        """The input of the Cast that computes `stored`, if there is one and kernels read its type;
        else `stored` itself."""

    def constant(self, base: str, values: np.ndarray) -> gs.Constant:
        """A new initializer; small equal ones are shared."""

    def written_last(self, tensor: gs.Tensor) -> gs.Tensor | None:
        """The variable in which `tensor` lies with its channels last; None if no node has written
        it so yet."""

    def packed(
        self, weight: gs.Constant, key: Hashable, arrange: Callable[[], np.ndarray | Derived]
    ) -> gs.Constant:
        """`weight` as kernels read it; `arrange` is called once for each weight and `key`."""


# --- ops ------------------------------------------------------------------------------------------


class FusedOp:
    """A kind of fused op. Each is one instance of a subclass, in the registry (ops/__init__.py).

    An op that patterns recognize states `name`, `op_type`, `anchors`, `problem`, `problem_type`,
    `body` and, if its node has more inputs than x, or attributes, `operation`. An op that replaces
    ordinary nodes of NHWC images states `name`, `op_type`, `operators`, `replacement` and `body`.
    Kernel families list its kinds (Family.kinds) and its problem (Family.problems), and its C++
    class registers itself under the same kinds (custom_ops/ops/). The defaults are those of an op
    that reads and writes tensors as ONNX has them, and has neither epilogue nor weight.
    """

    name: ClassVar[str]  # in rules and reports; also the kind in files unless `kinds` says more
    op_type: ClassVar[str]  # how names of its op types begin, e.g. "FusedConv"
    weighted: ClassVar[bool] = False  # input 1 is a weight
    # axes of a weight as ONNX has it: that of the output's channels, that of the input's
    weight_axes: ClassVar[tuple[int, int]] = (0, 1)
    # True: nodes behind it may become steps of its epilogue. False: its pattern matches all of it,
    # and it goes before candidates that could do without some of its nodes.
    takes_epilogue: ClassVar[bool] = False
    adds_values: ClassVar[bool] = True  # its epilogue reads tensors of values; False: of codes
    makes_codes: ClassVar[bool] = False  # its pattern ends with the codes of its result
    # its kernels may take over codes that another kernel makes of its result (plan/code_ends.py)
    takes_codes: ClassVar[bool] = False
    takes_mean: ClassVar[bool] = False  # the epilogue may end with the mean over an image
    channels_last: ClassVar[bool] = False  # kernels read and write tensors as NHWC
    # ONNX operators whose nodes it replaces if their x [N, C, H, W] is stored as NHWC
    operators: ClassVar[tuple[str, ...]] = ()
    ranks: ClassVar[tuple[int, ...]] = (4,)  # ranks of x, of such nodes
    averages: ClassVar[bool] = False  # such a replacement makes one mean of all pixels
    takes_cast: ClassVar[bool] = False  # such a replacement includes a Cast behind the node
    # all its kernels move rows in accesses of 16 bytes
    whole_accesses: ClassVar[bool] = False
    skips_padding: ClassVar[bool] = False  # it reads the channels of x in front of its padding
    takes_windows: ClassVar[bool] = False  # it reads and writes windows of images within these
    any_order: ClassVar[bool] = False  # x's columns may be stored in any order, as its weight's are
    gates: ClassVar[int] = 0  # steps of its epilogue that multiply by other columns of its product
    # True: a step of its epilogue rotates pairs of columns. None: one may do so.
    rotates: ClassVar[bool | None] = False

    def __repr__(self) -> str:
        return self.name

    def prepare(self, graph: gs.Graph) -> Sequence[str]:
        """Rewrite nodes of the canonical graph, before their precision is decided, so that more
        anchors are found; a line for the report for each kind of change."""
        return ()

    def restore(self, graph: gs.Graph) -> int:
        """Take back what `prepare` changed for nodes that no kernel took; returns how many."""
        return 0

    @property
    def kinds(self) -> tuple[str, ...]:
        """All kinds that its nodes may have in files and in C++ (`kind_of`)."""
        return (self.name,)

    def kind_of(self, signature: Signature) -> str:
        """The kind of a node, by which kernel families and C++ know it: one of `kinds`."""
        return self.name

    # --- recognition ----------------------------------------------------------------------------

    def anchors(self) -> Sequence[AnchorPattern]:
        """Which nodes it begins at; none for an op that stages make where they need it."""
        return ()

    def continuations(self) -> Sequence[StepPattern]:
        """Nodes behind it that are further products of its kernel."""
        return ()

    def combined(self, whole: Candidate, other: Candidate) -> Candidate | Refusal | None:
        """The candidate of this op for the nodes of two: of `whole` and of `other`, whose result
        `whole` alone reads, as an operand of its epilogue. These are its `layers`. The refusal of a
        near miss; None for any others."""
        return None

    def channels(self, anchor: Anchor) -> int:
        """Channels of the result, as ONNX has it: without a weight those of x, which a pattern
        has to know."""
        if anchor.weight is not None:
            return self.columns(anchor.weight)
        return int(anchor.x.shape[self.channel_axis(len(anchor.x.shape))])

    def columns(self, weight: gs.Constant) -> int:
        """Channels that a product with `weight` makes."""
        return int(weight.shape[self.weight_axes[0]])

    def channel_axis(self, rank: int) -> int:
        """The axis of the channels in tensors of the result's rank, as ONNX has them."""
        return 1 if self.channels_last else rank - 1

    def groups(self, node: gs.Node) -> int:
        """Groups of channels that the node keeps apart."""
        return 1

    def keeps_channels(self, anchor: Anchor) -> bool:
        """True if the result's channels are those of x, each by itself."""
        return False

    def accepts(self, operand: gs.Tensor, tensor: gs.Tensor) -> bool:
        """True if a step of the epilogue, whose result so far is `tensor`, can read `operand`: by
        default one of the same shape."""
        shape = operand.shape
        return shape is not None and list(shape) == list(tensor.shape) and None not in tensor.shape

    def pointwise(self, anchor: Anchor) -> bool:
        """True if it is a product of rows as they lie."""
        return False

    # --- planning -------------------------------------------------------------------------------

    def forms(self, candidate: Candidate, around: Surroundings) -> tuple[Form, Form]:
        """The layout rule: the forms in which a kernel reads x and writes the result."""
        return PLAIN, PLAIN

    def problem(self, candidate: Candidate, sizes: Sizes, stored: Stored | None) -> Problem:
        """The problem that a kernel solves, for tensors as they are stored; without `stored` as
        ONNX has them, which is what ONNX Runtime solves."""
        raise NotImplementedError(f"{self.name} is not planned")

    @property
    def problem_type(self) -> type[Problem] | None:
        """The class of `problem`'s results, by which families say that they solve it; None for an
        op that is not planned."""
        return None

    def writes_nchw(self, anchor: Anchor) -> bool:
        """True if there are kernels that write the result as NCHW."""
        return False

    def writes_slices(self, anchor: Anchor) -> bool:
        """True if kernels can write the result as some channels of a larger tensor."""
        return True

    # --- in the place of ordinary nodes ---------------------------------------------------------

    def replacement(self, node: gs.Node) -> Replacement | None:
        """Its node in the place of one of `operators`; None where its kernels cannot do that."""
        return None

    def selects(self, node: gs.Node) -> bool:
        """True if each value of such a replacement is one of x, so that it takes codes, too."""
        return False

    def forms_of(self, node: gs.Node, form: Form) -> tuple[Form, Form]:
        """The forms in which it reads x, which lies in `form`, and writes the result: by default
        that one."""
        return form, form

    def configs(
        self, x: Sequence[int], y: Sequence[int], dtype: DType, archs: Sequence[int]
    ) -> list[KernelConfig]:
        """The kernels of such a node, one for each architecture, for shapes as stored, 1 for sizes
        that are not known. By default there is one kernel whatever the shape."""
        return [only(self.name, number) for number in archs]

    # --- the node -------------------------------------------------------------------------------

    def operation(self, candidate: Candidate, stored: Stored, tensors: Tensors) -> Operation:
        """The node that takes the candidate's place: by default one that reads x alone, or what
        `replacement` says."""
        anchor = candidate.anchor
        found = (self.replacement(anchor.node) if self.operators else None) or Replacement()
        rank = len(anchor.x.shape) if self.operators else 0
        return Operation(
            Signature(self, anchor.dtype, rank, candidate.epilogue, variant=found.variant),
            [tensors.get(anchor.x, stored.reads), *found.inputs],
            {**found.attributes, **candidate.parameters},
        )

    def body(self, body: Body, signature: Signature, opset: int) -> str:
        """Append what it computes in standard operators of `opset`; the name of the result.

        Inputs are named "x" and as `inputs` says. A value that the body loads is to be converted
        (`Body.load`), since bfloat16 is computed in fp32.
        """
        raise NotImplementedError(f"{self.name} has no function body")

    def inputs(self, signature: Signature) -> list[str]:
        """Names of the inputs behind x in the function body."""
        operands = [step for step in signature.steps if step.row.operand]
        weight = ["weight"] if self.weighted else []
        return [*weight, *(f"operand{i}" for i in range(len(operands)))]

    def attributes(self, signature: Signature) -> Mapping[str, AttributeType]:
        """Attributes of the node that its body reads, with their types (AttributeProto.INTS)."""
        return {}

    def words(self, signature: Signature) -> Sequence[str]:
        """Words of the op type's name that tell variants apart."""
        return ()

    # --- libraries and reports ------------------------------------------------------------------

    def letters(self, signature: Signature) -> str:
        """One letter for each input behind x that is neither weight nor an epilogue's: t, a tensor
        of the element type, i, one with a vector of it for each image, f, one of float32, b, one of
        booleans, n, one of indices, whose type is `indices`, o, a table of offsets (int32), or s, a
        list of sizes (int64) in the host's memory."""
        return ""

    def indices(self, signature: Signature) -> IndexType | None:
        """The type of x where x are indices; None where x is of the element type."""
        return None

    def ends_with_codes(
        self, anchor: Anchor, before: Sequence[Link], dtype: DType, archs: Sequence[int]
    ) -> bool:
        """True if kernels for values may end with codes of a type behind the links `before`, on
        each of `archs`."""
        return False

    def beside(self, anchor: Anchor, tensor: gs.Tensor) -> tuple[Link, ...]:
        """The links by which a kernel writes the multi-use value `tensor`, at which an epilogue
        would end, and something made of it, too; none by default."""
        return ()

    def operands(self, chain: Sequence[str]) -> str:
        """One letter for each input behind those, `chain` the names of the steps: v, a vector, t, a
        tensor, u, one of values beside codes, or w, the weight of a further product."""
        rows = [EPILOGUES[step] for step in chain]
        return "".join("u" if row.operand and row.values else row.operand[:1] for row in rows)

    def positions(self, node: Described) -> list[Any]:
        """For an op with weights: the sizes of the positions at which each weight is multiplied
        once."""
        return list(node.output[:-1])

    def pieces(
        self, attributes: Mapping[str, Any], shapes: Sequence[Sequence[int]]
    ) -> Sequence[Piece]:
        """For a node whose reference takes much memory the pieces that it is computed in; none:
        as a whole. `shapes` are those of the inputs."""
        return ()

    def in_both_layouts(self, node: NodeProto) -> tuple[str, str] | None:
        """Names of a node's tensors that are the same as NCHW and as NHWC, where the attribute
        `padding` says how many channels more the second has; None for a node without such."""
        return None
