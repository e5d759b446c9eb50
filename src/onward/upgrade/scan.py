"""Write `Scan` of operator set 8, which works on a batch of sequences, as two of operator set 9, which has no batch.

The outer one goes over the batch, the inner one over the sequence:
Scan-8(states, sequences)[i] = Scan-9(states[i], sequences[i]).
"""

from __future__ import annotations

import onnx
from onnx import helper

from onward.graph.builder import Names


def has_batched_scan(proto: onnx.ModelProto) -> bool:
    """Return whether a model has a `Scan` of operator set 8 outside of subgraphs."""
    version = max((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), default=1)
    return version == 8 and any(n.op_type == "Scan" and n.domain in ("", "ai.onnx") for n in proto.graph.node)


def convert_batched_scan(node: onnx.NodeProto, names: Names) -> str:
    """Convert a node in place; return why it cannot be converted, or ""."""
    if node.input and node.input[0]:
        return "its sequences have lengths of their own (`sequence_lens`), which later versions of Scan do not have"
    given = {a.name: a for a in node.attribute}
    body, count = given["body"].g, given["num_scan_inputs"].i
    states = len(body.input) - count
    inner = onnx.NodeProto(op_type="Scan", name=names.unique(f"upgrade/{node.name or 'Scan'}"))
    inner.attribute.add().CopyFrom(given["body"])
    inner.attribute.append(helper.make_attribute("num_scan_inputs", count))
    if "directions" in given:
        inner.attribute.append(helper.make_attribute("scan_input_directions", list(given["directions"].ints)))
    outer = onnx.GraphProto(name=names.unique("upgrade/one_of_the_batch"))
    for index, value in enumerate(body.input):
        outer.input.add().CopyFrom(_seen_outside(value, index >= states, names))
    for index, value in enumerate(body.output):
        outer.output.add().CopyFrom(_seen_outside(value, index >= states, names))
    inner.input.extend(v.name for v in outer.input)
    inner.output.extend(v.name for v in outer.output)
    outer.node.append(inner)
    del node.attribute[:]
    del node.input[0]
    node.attribute.append(helper.make_attribute("body", outer))
    node.attribute.append(helper.make_attribute("num_scan_inputs", len(node.input)))
    return ""


def _seen_outside(value: onnx.ValueInfoProto, stacked: bool, names: Names) -> onnx.ValueInfoProto:
    """Return a value of the body as the graph around it has it: a sequence has one more dimension."""
    found = onnx.ValueInfoProto(name=names.unique(f"upgrade/{value.name}"))
    found.type.CopyFrom(value.type)
    kind = found.type.tensor_type
    if stacked and kind.HasField("shape"):
        sizes = list(kind.shape.dim)
        del kind.shape.dim[:]
        kind.shape.dim.add()
        kind.shape.dim.extend(sizes)
    return found
