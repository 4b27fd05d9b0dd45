"""The parts that all kinds of changes share: how they find their places, how they are applied, and
what they say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from onnx import ModelProto

from onnxbolt.advice.axes import UntiedError
from onnxbolt.advice.draft import Draft
from onnxbolt.errors import InputError

SAME = "the same"


def counted(count: int, noun: str) -> str:
    """'1 layer', '2 layers'."""
    return f"{count} {noun}" + "s" * (count != 1)


@dataclass(frozen=True)
class Obstacle:
    """A change that cannot be made: its kind, the source nodes that it would concern, and why."""

    kind: str
    nodes: tuple[str, ...]
    words: str


@dataclass(frozen=True)
class Change(ABC):
    """A change of a model, with the names of its places, so that it can be applied to any copy of
    the model."""

    kind: ClassVar[str]

    @classmethod
    @abstractmethod
    def find(cls, draft: Draft) -> Iterator[Change | Obstacle]:
        """The changes of this kind that the model allows, and those that it does not."""

    @property
    @abstractmethod
    def key(self) -> str:
        """A name that tells the change from others of the same model, and stays the same when
        another change was applied."""

    @property
    @abstractmethod
    def words(self) -> str:
        """One sentence that says what to change, without a period."""

    @property
    @abstractmethod
    def nodes(self) -> tuple[str, ...]:
        """The source nodes that it concerns."""

    @property
    def results(self) -> str:
        """The changed model's results, in words that follow "results: "."""
        return SAME

    @property
    def needs_retraining(self) -> bool:
        """True if the changed model computes another function, to which weights have to be
        trained."""
        return False

    @abstractmethod
    def applied(self, model: ModelProto) -> ModelProto:
        """A changed copy. Raises InputError if it contradicts itself."""


@dataclass(frozen=True)
class Edit(Change):
    """A change of the graph."""

    @abstractmethod
    def edit(self, draft: Draft) -> None:
        """Make the change."""

    def applied(self, model: ModelProto) -> ModelProto:
        draft = Draft(model)
        try:
            self.edit(draft)
        except UntiedError as reason:  # places that can be changed alone, but not together
            raise InputError(str(reason)) from reason
        return draft.model()
