"""A model with a `Gradient` node for a project that differentiates models but does not read that node.

`split` takes the node out and says what is asked: the derivative of which value, with respect to which inputs.
"""

from __future__ import annotations

import dataclasses
import unittest

import onnx

DOMAIN = "ai.onnx.preview.training"


@dataclasses.dataclass
class Question:
    """The model without its Gradient node: d(sum of `y`) / d(each of `xs`) are the outputs `gradients`."""

    forward: onnx.ModelProto  # `y` is its first output
    xs: list[str]
    y: str
    gradients: list[str]
    outputs: list[str]  # of the whole model, in order

    def answer(self, values: dict[str, object]) -> tuple[object, ...]:
        """Return the outputs of the whole model from those of the parts."""
        return tuple(values[name] for name in self.outputs)


def has_training(model: onnx.ModelProto) -> bool:
    return any(o.domain == DOMAIN for m in (model, *model.functions) for o in m.opset_import)


def split(model: onnx.ModelProto) -> Question | None:
    """Return what a model asks, or None if it has no training operators; skip what is more than one plain gradient."""
    if not has_training(model):
        return None
    special = [n for n in model.graph.node if n.domain == DOMAIN]
    others = sorted({n.op_type for n in special} - {"Gradient"})
    if others:
        raise unittest.SkipTest(f"it has no operator {', '.join(others)}")
    if len(special) != 1 or model.functions:
        raise unittest.SkipTest(
            "it differentiates a whole model once: no second order, no Gradient in a body or function"
        )
    (node,) = special
    texts = {a.name: a for a in node.attribute}
    xs = [s.decode() for s in texts["xs"].strings]
    zs = [s.decode() for s in texts["zs"].strings] if "zs" in texts else []
    y = texts["y"].s.decode()
    if list(node.input) != [*xs, *zs]:
        raise unittest.SkipTest("it does not evaluate a gradient at another point")
    given = {v.name for v in model.graph.input} | {t.name for t in model.graph.initializer}
    if not set(xs) <= given:
        raise unittest.SkipTest("it does not differentiate with respect to a computed value")
    made = {o for o in node.output if o}
    if any(made & set(n.input) for n in model.graph.node):
        raise unittest.SkipTest("it gives gradients as outputs, and the model computes with them")
    forward = onnx.ModelProto()
    forward.CopyFrom(model)
    del forward.graph.node[:]
    forward.graph.node.extend(n for n in model.graph.node if n is not node)
    plain = [o for o in model.graph.output if o.name not in made and o.name != y]
    del forward.graph.output[:]
    known = {v.name: v for v in [*model.graph.value_info, *model.graph.output]}
    inferred = onnx.shape_inference.infer_shapes(forward)
    known |= {v.name: v for v in inferred.graph.value_info if v.name not in known}
    if y not in known:
        raise unittest.SkipTest(f"the type of `{y}` cannot be inferred")
    forward.graph.output.extend([known[y], *plain])
    imports = [o for o in forward.opset_import if o.domain != DOMAIN]
    del forward.opset_import[:]
    forward.opset_import.extend(imports)
    names = list(node.output)
    return Question(forward, xs, y, names, [o.name for o in model.graph.output])
