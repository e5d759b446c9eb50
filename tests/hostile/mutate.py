"""Mutants of model files: of their bytes, and of their structure. The same index always gives the same mutant."""

from __future__ import annotations

import pathlib
import random
from typing import Any

import onnx
from onnx import TensorProto, helper

from hostile.files import TRAINING, externalise, rich_model, small_model, value

NUMBERS = [
    *(0, 1, -1, 2, 3, 7, 8, 127, 128, 255, 2**15, 2**16, 2**31 - 1, 2**31, -(2**31), 2**32, 2**40, 2**62),
    *(2**63 - 1, -(2**63)),
]
WORDS = [
    *("", "x", "y", "W", "b", "loss", "labels", "T", "grad/W", "W_new", "Gradient", "Adam", "Momentum", "GraphCall"),
    *("If", "Loop", "ai.onnx", TRAINING, "my.functions", "Scale", "../secret", "a" * 5000, "ä✓", "weights.bin"),
    *("*/_ORT_MEM_ADDR_/*", "small", "rich"),
]


def corpus(folder: pathlib.Path) -> list[tuple[str, bytes]]:
    """Return the files to mutate, by name; the data of the one with external data is written to `folder`."""
    models = {
        "small": small_model(),
        "rich": rich_model(),
        "external": externalise(rich_model(), folder),
        "legacy": legacy_model(),
        "nested": nested_model(),
        "functions": function_model(),
        "plain": plain_model(),
    }
    return [(name, model.SerializeToString(deterministic=True)) for name, model in models.items()]


def plain_model() -> onnx.ModelProto:
    model = small_model()
    model.ClearField("training_info")
    return model


def legacy_model() -> onnx.ModelProto:
    """Return a file of ONNX 1.7."""
    model = small_model()
    model.ir_version = 7
    call = helper.make_node("GraphCall", ["x"], ["y"], "call", domain=TRAINING, graph_name="small")
    model.training_info[0].algorithm.node.insert(0, call)
    model.training_info[0].algorithm.input.append(value("x", ["batch", 3]))
    return model


def nested_model(depth: int = 6) -> onnx.ModelProto:
    """Return If in If in If, with a Loop at the bottom."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["c2"]), helper.make_node("Add", ["v", "v"], ["v2"])],
        "body",
        [value("i", [], TensorProto.INT64), value("c", [], TensorProto.BOOL), value("v", [2])],
        [value("c2", [], TensorProto.BOOL), value("v2", [2])],
    )
    node = helper.make_node("Loop", ["n", "flag", "x"], ["r0"], body=body)
    for index in range(depth):
        branches = {}
        for side in ("then_branch", "else_branch"):
            branches[side] = helper.make_graph([node], side, [], [value(f"r{index}", [2])])
        node = helper.make_node("If", ["flag"], [f"r{index + 1}"], **branches)
    graph = helper.make_graph(
        [node],
        "nested",
        [value("x", [2]), value("flag", [], TensorProto.BOOL), value("n", [], TensorProto.INT64)],
        [value(f"r{depth}", [2])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def function_model(count: int = 12) -> onnx.ModelProto:
    """Return functions that each call the next one twice, called from both graphs of the small model."""
    model = small_model()
    model.opset_import.add(domain="d", version=1)
    for index in range(count):
        last = index + 1 == count
        nodes = [
            helper.make_node("Relu" if last else f"F{index + 1}", [a], [b], domain="" if last else "d")
            for a, b in (("p", "q"), ("q", "r"))
        ]
        model.functions.append(
            helper.make_function("d", f"F{index}", ["p"], ["r"], nodes, [helper.make_opsetid("", 18)])
        )
    model.graph.node.append(helper.make_node("F0", ["y"], ["z"], domain="d"))
    model.training_info[0].algorithm.node.append(helper.make_node("F0", ["sq"], ["sq2"], domain="d"))
    return model


def byte_mutant(index: int, files: list[tuple[str, bytes]]) -> bytes:
    """Return mutant number `index` of the bytes of one of `files`."""
    rng = random.Random(f"bytes {index}")
    data = bytearray(rng.choice(files)[1])
    for _ in range(rng.choice([1, 1, 1, 2, 4, 16])):
        if not data:
            break
        at = rng.randrange(len(data))
        kind = rng.choice([0, 0, 0, 0, 1, 1, 1, 1, 2, 3, 4, 5, 6, 7])  # mostly what keeps the lengths right
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        elif kind == 2:
            del data[at:]
        elif kind == 3:
            del data[at : at + rng.choice([1, 2, 8, 64])]
        elif kind == 4:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice([1, 2, 8, 64])))
        elif kind == 5:
            data[at:at] = data[at : at + rng.choice([4, 16, 256])]
        elif kind == 6:
            other = rng.choice(files)[1]
            start = rng.randrange(len(other))
            data[at : at + 32] = other[start : start + rng.choice([8, 64, 512])]
        else:
            data[at : at + 9] = b"\xff" * 9
    return bytes(data)


def structural_mutant(index: int, files: list[tuple[str, bytes]]) -> bytes:
    """Return mutant number `index` of the messages of one of `files`: still protobuf, but not what it was."""
    rng = random.Random(f"structure {index}")
    model = onnx.ModelProto.FromString(rng.choice(files)[1])
    donor = onnx.ModelProto.FromString(rng.choice(files)[1])
    for _ in range(rng.choice([1, 1, 2, 3, 8])):
        roots: list[Any] = [model]
        if model.training_info and rng.random() < 0.5:  # half of them in the training graphs
            roots = list(model.training_info)
        messages = _messages(rng.choice(roots))
        message = rng.choice(messages)
        if rng.random() < 0.15:
            _special(message, model, rng)
        else:
            _change(message, donor, rng)
    return bytes(model.SerializeToString())


def _messages(root: Any, limit: int = 4000) -> list[Any]:
    found, stack = [], [root]
    while stack and len(found) < limit:
        message = stack.pop()
        found.append(message)
        for field, content in message.ListFields():
            if field.message_type is not None:
                stack.extend(content if field.is_repeated else [content])
    return found


def _change(message: Any, donor: onnx.ModelProto, rng: random.Random) -> None:
    field = rng.choice(list(message.DESCRIPTOR.fields))
    content = getattr(message, field.name)
    if field.message_type is not None:
        same = [m for m in _messages(donor, 1000) if m.DESCRIPTOR is field.message_type]
        if not field.is_repeated:
            if rng.random() < 0.5 or not same:
                message.ClearField(field.name)
            else:
                content.CopyFrom(rng.choice(same))
        elif content and rng.random() < 0.4:
            del content[rng.randrange(len(content))]
        elif content and rng.random() < 0.6:
            content.add().CopyFrom(content[rng.randrange(len(content) - 1) if len(content) > 1 else 0])
        elif same:
            content.add().CopyFrom(rng.choice(same))
    elif field.is_repeated:
        if content and rng.random() < 0.4:
            del content[rng.randrange(len(content))]
        elif content and rng.random() < 0.5:
            content[rng.randrange(len(content))] = _scalar(field, rng)
        else:
            content.append(_scalar(field, rng))
    elif rng.random() < 0.25:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _scalar(field, rng))


def _scalar(field: Any, rng: random.Random) -> Any:
    if field.type == field.TYPE_STRING:
        return rng.choice(WORDS)
    if field.type == field.TYPE_BYTES:
        return rng.choice([b"", b"\0" * 4, b"\xff" * 24, rng.choice(WORDS).encode()])
    if field.type == field.TYPE_ENUM:
        return rng.choice([v.number for v in field.enum_type.values])
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return rng.choice([0.0, -1.0, 1e38, float("nan"), float("inf")])
    number = rng.choice(NUMBERS)
    if field.type in (field.TYPE_UINT64, field.TYPE_UINT32):
        return abs(number) % 2**32
    return max(-(2**31), min(2**31 - 1, number)) if field.type == field.TYPE_INT32 else number


def _special(message: Any, model: onnx.ModelProto, rng: random.Random) -> None:
    """Do what chance alone hardly finds."""
    if isinstance(message, onnx.TensorProto):
        if rng.random() < 0.5:
            message.data_location = TensorProto.EXTERNAL
            message.ClearField("raw_data")
            message.external_data.add(key="location", value=rng.choice(["weights.bin", "../m", "/etc/passwd", "m"]))
            message.external_data.add(key=rng.choice(["offset", "length"]), value=str(rng.choice(NUMBERS)))
        else:
            del message.dims[:]
            message.dims.extend(rng.choice(NUMBERS) for _ in range(rng.randrange(5)))
    elif isinstance(message, onnx.GraphProto) and message.node:
        inner = onnx.GraphProto()
        inner.CopyFrom(message)
        message.node[rng.randrange(len(message.node))].attribute.add(
            name="body", type=onnx.AttributeProto.GRAPH
        ).g.CopyFrom(inner)
    elif model.functions:
        function = rng.choice(model.functions)
        other = rng.choice(model.functions)
        function.node.add(op_type=other.name, domain=other.domain, input=function.input, output=["again"])
    else:
        names = [
            n
            for g in (model.graph, *(i.algorithm for i in model.training_info))
            for node in g.node
            for n in node.output
        ]
        for entry in [b for i in model.training_info for b in i.update_binding]:
            entry.value = rng.choice(names or ["x"])
