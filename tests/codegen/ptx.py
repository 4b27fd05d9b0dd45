"""As much of PTX as it takes to tell which accesses to global memory may come before
griddepcontrol.wait, and through which parameter.

An access is *early* if some path from the kernel's entry reaches it without a wait. Its address is
traced back, through all definitions of 64-bit registers, to offsets in the kernel's parameter: to
pointers that are loaded from there and to tensor maps that lie there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

WAIT = "griddepcontrol.wait"
_ENTRY = re.compile(r"^\.(?:visible \.)?entry\s+(\w+)", re.MULTILINE)
_LABEL = re.compile(r"([\w$]+):$")
_STATEMENT = re.compile(r"(?:@(!?[%\w]+)\s+)?([a-z][\w.:]*)\s*(.*?);?$")
_POINTER = re.compile(r"%rd\d+")
_PLACE = re.compile(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\d+))?")
_ACCESS = re.compile(
    r"(ld|st|atom|red|cp\.async\.bulk\.tensor|cp\.async\.c[ag]|cp\.reduce\.async)\b"
)
_ELSEWHERE = (".shared", ".param", ".local", ".const")


@dataclass(frozen=True)
class Instruction:
    """`opcode` with its suffixes, operands as text; `target` is the instruction that a branch
    goes to."""

    opcode: str
    operands: str
    guarded: bool
    target: int = -1

    @property
    def is_global(self) -> bool:
        """True for what reads or writes global memory; a load or store that names no space may
        do so."""
        if not _ACCESS.match(self.opcode):
            return False
        if self.opcode.startswith("cp."):
            return ".global" in self.opcode
        return not any(space in self.opcode for space in _ELSEWHERE)

    @property
    def base(self) -> str:
        """The register that points to global memory, or to a tensor map: of a copy into shared
        memory the second operand in brackets."""
        places = _PLACE.findall(self.operands)
        into_shared = (
            self.opcode.startswith(("cp.async.ca", "cp.async.cg"))
            or ".shared::cluster.global" in self.opcode
        )
        return str(places[1 if into_shared else 0][0])


@dataclass(frozen=True)
class Origin:
    """The source of a pointer: `offset` in the parameter, as the place's own address or as the
    value that is stored there."""

    offset: int
    is_place: bool


@dataclass
class Kernel:
    """One entry of a PTX file."""

    name: str
    instructions: list[Instruction] = field(default_factory=list)
    _known: dict[str, frozenset[Origin]] = field(default_factory=dict)

    @property
    def waits(self) -> bool:
        return any(instruction.opcode == WAIT for instruction in self.instructions)

    def early(self) -> list[Instruction]:
        """Accesses to global memory that a path reaches without a wait."""
        reached, pending = set[int](), [0]
        while pending:
            at = pending.pop()
            if at in reached or at >= len(self.instructions):
                continue
            reached.add(at)
            if self.instructions[at].opcode != WAIT:
                pending += self._next(at)
        return [self.instructions[at] for at in sorted(reached) if self.instructions[at].is_global]

    def offsets(self, instruction: Instruction) -> frozenset[int]:
        """The offsets in the parameter that an access's address comes from."""
        return frozenset(origin.offset for origin in self._origins(instruction.base))

    def _next(self, at: int) -> Iterator[int]:
        instruction = self.instructions[at]
        if instruction.target >= 0:
            yield instruction.target
        if instruction.guarded or not instruction.opcode.startswith(("bra", "ret", "exit", "trap")):
            yield at + 1

    def _origins(self, register: str) -> frozenset[Origin]:
        if register not in self._known:
            self._known[register] = frozenset()  # definitions can form a circle
            found: set[Origin] = set()
            for instruction in self._definitions.get(register, ()):
                found |= self._defined_by(instruction, register)
            self._known[register] = frozenset(found)
        return self._known[register]

    def _defined_by(self, instruction: Instruction, register: str) -> set[Origin]:
        targets, _, sources = instruction.operands.partition(
            "}, " if instruction.operands.startswith("{") else ", "
        )
        if instruction.opcode.startswith("ld.param"):
            ((base, offset),) = _PLACE.findall(sources)
            at = int(offset or 0) + 8 * _POINTER.findall(targets).index(register)
            places = (
                [origin.offset for origin in self._origins(base) if origin.is_place]
                if base.startswith("%")
                else [0]
            )
            return {Origin(place + at, False) for place in places}
        if instruction.opcode.startswith("ld"):
            return set()
        if sources.endswith("_param_0"):
            return {Origin(0, True)}
        found = {origin for source in _POINTER.findall(sources) for origin in self._origins(source)}
        constant = re.search(r", (-?\d+)$", sources)
        if instruction.opcode != "add.s64" or not constant:
            return found
        return {
            Origin(origin.offset + int(constant[1]), True) if origin.is_place else origin
            for origin in found
        }

    @cached_property
    def _definitions(self) -> dict[str, list[Instruction]]:
        found: dict[str, list[Instruction]] = {}
        for instruction in self.instructions:
            targets = instruction.operands.partition(
                "}" if instruction.operands.startswith("{") else ","
            )[0]
            for register in _POINTER.findall(targets):
                found.setdefault(register, []).append(instruction)
        return found


def kernels(text: str) -> list[Kernel]:
    """The entries of a PTX file. Raises ValueError for a branch that this cannot follow."""
    starts = [match.start() for match in _ENTRY.finditer(text)]
    return [
        _kernel(text[start:end])
        for start, end in zip(starts, [*starts[1:], len(text)], strict=True)
    ]


def _kernel(text: str) -> Kernel:
    name = _ENTRY.match(text)
    assert name
    lines = [line.partition("//")[0].strip() for line in text[text.index("\n{") + 1 :].splitlines()]
    kernel, scopes, labels, branches = (
        Kernel(name[1]),
        [0],
        dict[tuple[int, str], int](),
        dict[int, tuple[list[int], str]](),
    )
    for number, line in enumerate(lines):
        if line in ("{", "}"):  # labels of an inline assembly's block are its own
            scopes = [*scopes, number + 1] if line == "{" else scopes[:-1]
        elif label := _LABEL.fullmatch(line):
            labels[scopes[-1], label[1]] = len(kernel.instructions)
        elif (read := _STATEMENT.fullmatch(line)) and not line.startswith("."):
            if read[2].startswith("brx"):
                raise ValueError(f"{kernel.name}: a table of branches cannot be followed")
            if read[2].startswith("bra"):
                branches[len(kernel.instructions)] = scopes, read[3]
            kernel.instructions.append(
                Instruction(read[2], re.sub(r"\s+", " ", read[3]), bool(read[1]))
            )
    for at, (within, label_name) in branches.items():
        found = [
            labels[scope, label_name] for scope in reversed(within) if (scope, label_name) in labels
        ]
        if not found:
            raise ValueError(f"{kernel.name}: label {label_name} is unknown")
        old = kernel.instructions[at]
        kernel.instructions[at] = Instruction(old.opcode, old.operands, old.guarded, found[0])
    return kernel
