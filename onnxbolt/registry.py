"""Tables of the package's entries by name or number, to which extensions add theirs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, ValuesView
from typing import Protocol, TypeVar

EXTENSIONS_FROM = 1000  # numbers below are the package's
Result = TypeVar("Result")
_emptied: list[Callable[[], None]] = []  # functions that empty the caches of `cached`


def cached(
    maxsize: int,
) -> Callable[[Callable[..., Result]], functools._lru_cache_wrapper[Result]]:
    """functools.lru_cache for functions that read a registry: the cache is emptied when an entry is
    added or removed."""

    def decorate(function: Callable[..., Result]) -> functools._lru_cache_wrapper[Result]:
        wrapped = functools.lru_cache(maxsize)(function)
        _emptied.append(wrapped.cache_clear)
        return wrapped

    return decorate


class NotInstalledError(ValueError):
    """A value from outside, such as a number, that only an extension could have; none that is
    installed has it."""


class Named(Protocol):
    """An entry of a table."""

    @property
    def name(self) -> str: ...


Key = TypeVar("Key", bound=Hashable)
Entry = TypeVar("Entry", bound=Named)


class Registry(Mapping[Key, Entry]):
    """The entries of one kind, in the order in which they were added; the package's own come first.

    `what` is the kind in words. `unique` are the attributes that no two entries share; the first
    one is the key.
    """

    def __init__(self, what: str, own: Iterable[Entry], *unique: str) -> None:
        self._what, self._unique = what, unique
        self._entries: dict[Key, Entry] = {}
        self._owners: dict[Key, str] = {}
        for entry in own:
            self.add(entry, "")

    def __getitem__(self, key: Key) -> Entry:
        return self._entries[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def values(self) -> ValuesView[Entry]:
        """A dictionary's own view, which is iterated over many times as a model is planned."""
        return self._entries.values()

    def owner(self, key: Key) -> str:
        """The name of the extension that added an entry; empty for one of the package's own."""
        return self._owners[key]

    def add(self, entry: Entry, owner: str) -> None:
        """Add an entry of the extension `owner`. Raises ValueError, which names both sides, where
        another entry has its name or number."""
        for attribute in self._unique:
            value = getattr(entry, attribute)
            for key, other in self._entries.items():
                if getattr(other, attribute) == value:
                    raise ValueError(
                        f"its {self._what} {entry.name} has the {attribute} {value} of"
                        f" {self._side(key)}: give it another"
                    )
        key = self._key(entry)
        self._entries[key], self._owners[key] = entry, owner
        empty_caches()

    def remove(self, entry: Entry) -> None:
        """Take an extension's entry away again. Raises ValueError for one of the package's own."""
        key = self._key(entry)
        if not self._owners.get(key):
            raise ValueError(f"{self._what} {entry.name} is none of an extension's")
        del self._entries[key], self._owners[key]
        empty_caches()

    def _key(self, entry: Entry) -> Key:
        key: Key = getattr(entry, self._unique[0])
        return key

    def _side(self, key: Key) -> str:
        """An entry and its owner, in words."""
        owner, name = self._owners[key], self._entries[key].name
        return f"{self._what} {name} of extension {owner}" if owner else f"onnxbolt's own {name}"


def empty_caches() -> None:
    """Forget all answers that depend on the registries' entries."""
    for empty in _emptied:
        empty()
