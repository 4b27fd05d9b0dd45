"""Op types of domain com.onnxbolt as the library needs them, and their description in a model
(metadata entry onnxbolt.ops)."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx import AttributeProto, NodeProto

from onnxbolt import checks, domains, ops
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType, IndexType
from onnxbolt.epilogues import (
    CASTS,
    EPILOGUES,
    MAX_STEPS,
    MAX_TENSORS,
    MAX_VECTORS,
    gates,
    rotates,
    values_of,
)
from onnxbolt.errors import InputError
from onnxbolt.families import KernelConfig, config_from, of_kind
from onnxbolt.families.row import WIDTH
from onnxbolt.ops.base import Described, FusedOp, Signature

DOMAIN = domains.FUSED
_TYPES = frozenset(dtype.value for dtype in DType)
_INDEX_TYPES = frozenset(index.value for index in IndexType)
_LETTERS, _MOST_LETTERS = frozenset("tfbinso"), 8  # the own inputs of an op


@dataclass(frozen=True)
class OpSpec:
    """An op type: the facts that the library needs and that a node's attributes do not give. Raises
    InputError for one that no library could hold."""

    name: str  # matches checks.NAME
    kind: str  # the kind of fused op (onnxbolt/ops/)
    element: DType  # type of x and weight, and of the epilogue's tensors
    output: DType
    chain: tuple[str, ...] = ()  # names of the epilogue's steps, including a final cast
    nchw_input: DType | None = None  # the type of x if x is NCHW and y NHWC, else None
    into: bool = False  # True if it writes into its last input, a tensor that earlier nodes began
    to_nchw: bool = False  # True if a convolution writes y as NCHW
    letters: str = ""  # the inputs behind x that are the op's own (FusedOp.letters)
    indices: IndexType | None = None  # the type of x, and of inputs n, where x are indices

    def __post_init__(self) -> None:
        try:
            checks.name("op type", self.name)
            checks.entry("kind", self.kind, ops.kinds())
            checks.integer("number of steps", len(self.chain), 0, MAX_STEPS)
            for step in self.chain:
                checks.entry("step", step, EPILOGUES)
            checks.integer("number of inputs", len(self.letters), 0, _MOST_LETTERS)
            for letter in self.letters:
                checks.entry("letter", letter, _LETTERS)
            if "n" in self.letters and self.indices is None:
                raise ValueError("the type of its indices is missing")
            values_of(self.chain)
        except ValueError as error:
            raise InputError(
                "the model describes an op type that this version of onnxbolt does not know"
                f" ({error})"
            ) from error
        if gates(self.chain) != self.op.gates:
            raise InputError(
                f"op {self.name} has {gates(self.chain)} gates, but nodes of the kind {self.kind}"
                f" have {self.op.gates}"
            )
        if self.op.rotates not in (None, rotates(self.chain)):
            does, do = ("rotates", "do not") if rotates(self.chain) else ("does not rotate", "do")
            raise InputError(f"op {self.name} {does}, but nodes of the kind {self.kind} {do}")
        operands = self.op.operands(self.chain)
        if (
            max(layer.count("v") for layer in operands.split("w")) > MAX_VECTORS
            or operands.count("t") + operands.count("u") > MAX_TENSORS
        ):
            raise InputError(
                f"op {self.name} takes more operands than a kernel can: {MAX_VECTORS}"
                f" vectors and {MAX_TENSORS} tensors"
            )

    @classmethod
    def of(cls, signature: Signature, name: str) -> OpSpec:
        """The op type that a function's signature describes, by the function's name."""
        chain, dtype = tuple(step.name for step in signature.steps), signature.dtype
        output = (EPILOGUES[chain[-1]].cast if chain else None) or dtype
        kind, nchw_input = signature.op.kind_of(signature), signature.nchw_input
        into, to_nchw = signature.into, signature.to_nchw
        letters, indices = signature.op.letters(signature), signature.op.indices(signature)
        return cls(name, kind, dtype, output, chain, nchw_input, into, to_nchw, letters, indices)

    @property
    def op(self) -> FusedOp:
        """The fused op whose nodes are of this type."""
        return ops.named(self.kind)

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps that the kernel computes: all but the final cast, which decides the kernel's
        output type."""
        return tuple(step for step in self.chain if step not in CASTS.values())

    @property
    def values(self) -> DType | None:
        """The type of values that a product of codes adds or stores beside these."""
        return values_of(self.chain)

    @property
    def operands(self) -> str:
        """One letter for each input behind x and weight: the op's own letters, then v for a vector,
        t for a tensor, u for one of `values`, w for the weight of a further product, and at the end
        y for the output as earlier nodes left it."""
        return self.letters + self.op.operands(self.chain) + "y" * self.into

    @property
    def extensions(self) -> frozenset[str]:
        """The extensions that the op type comes from."""
        owners = {ops.OPS.owner(self.op.name), *map(EPILOGUES.owner, self.chain)}
        return frozenset(owners - {""})

    def products(
        self,
        y: Sequence[Any],
        shapes: Sequence[Sequence[Any]],
        attributes: Mapping[str, Any],
        read: int | None = None,
    ) -> tuple[list[Any], int]:
        """For a node with weights: the sizes of the positions at which each weight is multiplied
        once, and the number of these weights. Sizes of a weight that are not known, since it is
        computed at run time, are among those of the positions.

        `y` is the output's shape, `shapes` are those of all inputs; `attributes` are the node's,
        `read` the channels of x without padding where it has some. Padding of x and of the output
        does not count.
        """
        unknown = [size for size in shapes[1] if not isinstance(size, int)]
        weights = [
            [size if isinstance(size, int) else 1 for size in shapes[1]] or [1],
            *(
                list(shape)
                for letter, shape in zip(self.operands, shapes[2:], strict=True)
                if letter == "w"
            ),
        ]
        if read is not None and attributes.get("group", 1) == 1:
            weights[0][-1] = min(weights[0][-1], read)
        written = real_channels(attributes) or weights[-1][0] - attributes.get("padding", 0)
        weights[-1][0] = min(weights[-1][0], written)
        node = Described(y, shapes, attributes, self.chain, self.to_nchw)
        positions = [*self.op.positions(node), *unknown]
        return positions, sum(math.prod(weight) for weight in weights)

    def instance(self, config: KernelConfig) -> Instance:
        """The kernel that a node of this type needs for one row of its configurations. Raises
        InputError if no such kernel exists."""
        try:
            if config.family not in of_kind(self.kind):
                raise ValueError(
                    f"kernel family {config.family.name} does not serve the kind {self.kind}"
                )
            return Instance(config.instance(), self.element, self.output, self.steps)
        except ValueError as error:
            raise InputError(f"op {self.name}: {error}. Run: onnxbolt optimize") from error


def real_channels(attributes: Mapping[str, Any], output: str = "") -> int | None:
    """The channels of a fused node's output without padding (of its second output if `output` is
    "stored_"); None if there is no padding."""
    channels = attributes.get(f"{output}channel_map")
    return (
        sum(channel >= 0 for channel in channels)
        if channels and "around" not in attributes
        else None
    )


def stands_for(attributes: Mapping[str, Any]) -> str:
    """The names of the original's tensors that a node's output 0 is, by its attributes; "" if there
    are none."""
    joined = attributes.get("joined_tensors", [])
    names = [name.decode() for name in joined] or [attributes.get("tensor", b"").decode()]
    return ", ".join(names)


def by_name(ops: Iterable[OpSpec]) -> tuple[OpSpec, ...]:
    """The op types without repetition, sorted by name. Raises InputError if different ones share a
    name."""
    unique = sorted(set(ops), key=lambda op: op.name)
    for op, following in itertools.pairwise(unique):
        if op.name == following.name:
            raise InputError(
                f"op type {op.name} is described twice, differently: {op} and {following}"
            )
    return tuple(unique)


def ops_to_json(ops: Iterable[OpSpec]) -> str:
    """The metadata entry onnxbolt.ops: the facts of op types that nodes' attributes do not give."""
    rows = [
        {
            "name": op.name,
            "kind": op.kind,
            "element": op.element.value,
            "output": op.output.value,
            "chain": list(op.chain),
            **({"planes": op.nchw_input.value} if op.nchw_input else {}),
            **({"into": True} if op.into else {}),
            **({"to_nchw": True} if op.to_nchw else {}),
            **({"inputs": op.letters} if op.letters else {}),
            **({"indices": op.indices.value} if op.indices else {}),
        }
        for op in by_name(ops)
    ]
    return json.dumps(rows, separators=(",", ":"))


def ops_from_json(text: str) -> tuple[OpSpec, ...]:
    """The inverse of `ops_to_json`. Raises InputError for a damaged or unknown text."""
    try:
        rows = checks.parsed_json(text)
        if not isinstance(rows, list):
            raise ValueError("a list is expected")
        return tuple(_from_row(row) for row in rows)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"the model's metadata entry onnxbolt.ops is damaged ({error}). Run: onnxbolt optimize"
        ) from error


def _from_row(row: Any) -> OpSpec:
    if not isinstance(row, dict) or not isinstance(row["chain"], list):
        raise ValueError("an op type must be an object whose `chain` is a list")
    element, output = (DType(checks.entry(key, row[key], _TYPES)) for key in ("element", "output"))
    nchw_input = DType(checks.entry("planes", row["planes"], _TYPES)) if "planes" in row else None
    into, to_nchw = (checks.boolean(key, row.get(key, False)) for key in ("into", "to_nchw"))
    letters = row.get("inputs", "")
    if not isinstance(letters, str):
        raise ValueError("the `inputs` of an op type must be letters")
    chain, indices = tuple(row["chain"]), None
    if "indices" in row:
        indices = IndexType(checks.entry("indices", row["indices"], _INDEX_TYPES))
    return OpSpec(
        row["name"],
        row["kind"],
        element,
        output,
        chain,
        nchw_input,
        into,
        to_nchw,
        letters,
        indices,
    )


def configs_of_node(node: NodeProto) -> list[KernelConfig]:
    """The rows of a fused node's configuration table. Raises InputError if the table is damaged."""
    attribute = next((a for a in node.attribute if a.name == "configs"), None)
    try:
        if attribute is not None and attribute.type != AttributeProto.INTS:
            raise ValueError("it is not a list of integers")
        numbers = list(attribute.ints) if attribute is not None else []
        return [config_from(numbers[i : i + WIDTH]) for i in range(0, len(numbers), WIDTH)]
    except ValueError as error:
        raise InputError(
            f"node {node.name}: attribute configs is damaged ({error}). Run: onnxbolt optimize"
        ) from error
