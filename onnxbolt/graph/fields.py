"""Fields of protobuf messages."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import Message  # type: ignore[import-untyped]


def copy_fields(source: Message, target: Message, skip: Sequence[str]) -> None:
    """Add the fields of `source` to `target`, except those named in `skip`."""
    for field, value in source.ListFields():
        if field.name in skip:
            continue
        if field.is_repeated:
            getattr(target, field.name).extend(value)
        elif field.message_type is not None:
            getattr(target, field.name).CopyFrom(value)
        else:
            setattr(target, field.name, value)
