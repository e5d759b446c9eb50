"""Structural mutants: a right model with a few fields changed at random, still a readable file."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import onnx

from check import models

BASES: tuple[Callable[[], onnx.ModelProto], ...] = (
    models.linear, models.two_entries, models.with_functions, models.with_if, models.with_loop,
)  # fmt: skip
_NUMBERS = (0, 1, -1, 2, 7, 21, 99, 2**31 - 1, 2**63 - 1, -(2**63))


def mutant(choose: random.Random, changes: int = 2) -> onnx.ModelProto:
    """Return one of the right models with `changes` random fields changed, removed, repeated or moved."""
    model = choose.choice(BASES)()
    words = sorted({w for m in _messages(model) for f, v in m.ListFields() for w in _words(f, v)})
    for _ in range(changes):
        message = choose.choice([m for m in _messages(model) if m.ListFields()])
        field, value = choose.choice(message.ListFields())
        if field.is_repeated:
            _change_list(choose, field, value, words)
        elif field.type == field.TYPE_MESSAGE or choose.random() < 0.2:
            message.ClearField(field.name)
        elif (fresh := _fresh(choose, field, words)) is not None:
            setattr(message, field.name, fresh)
    return model


def _messages(root: Any) -> list[Any]:
    found, stack = [], [root]
    while stack:
        message = stack.pop()
        found.append(message)
        for field, value in message.ListFields():
            if field.type == field.TYPE_MESSAGE:
                stack.extend(value if field.is_repeated else [value])
    return found


def _words(field: Any, value: Any) -> list[str]:
    if field.type != field.TYPE_STRING:
        return []
    return list(value) if field.is_repeated else [value]


def _change_list(choose: random.Random, field: Any, values: Any, words: list[str]) -> None:
    index = choose.randrange(len(values))
    action = choose.choice(["remove", "repeat", "move", "change"])
    if action == "remove":
        del values[index]
    elif action == "repeat":
        values.append(values[index])
    elif action == "move" and len(values) > 1:
        items = list(values)
        choose.shuffle(items)
        copies = [type(i).FromString(i.SerializeToString()) for i in items] if _is_message(field) else items
        del values[:]
        values.extend(copies)
    elif field.type != field.TYPE_MESSAGE and (fresh := _fresh(choose, field, words)) is not None:
        values[index] = fresh


def _fresh(choose: random.Random, field: Any, words: list[str]) -> Any:
    if field.type == field.TYPE_STRING:
        return choose.choice([*words, "", "nobody"])
    if field.type == field.TYPE_BYTES:
        return choose.choice([b"", b"abc", b"\xff" * 12, b"W", b"loss", bytes(8)])
    if field.type == field.TYPE_FLOAT:
        return choose.choice([0.0, float("nan"), 1e38])
    if field.type == field.TYPE_ENUM:
        return choose.choice([v.number for v in field.enum_type.values])
    if field.type == field.TYPE_INT32:
        return choose.choice([0, 1, 7, 16, 99, -1])
    return choose.choice(_NUMBERS) if field.type in (field.TYPE_INT64, field.TYPE_UINT64) else None


def _is_message(field: Any) -> bool:
    return bool(field.type == field.TYPE_MESSAGE)
