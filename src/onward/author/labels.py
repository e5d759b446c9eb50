"""Find the outputs that a loss reads and the label inputs that it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from onward.arguments import did_you_mean, nearest
from onward.errors import A100, A101, ArgumentError, Diagnostic, counted
from onward.graph.builder import Names
from onward.graph.element_types import element_type
from onward.losses import LabelSpec

LabelArgument = str | Sequence[str] | Mapping[str, Any] | None


def find_value(values: Mapping[str, ir.Value], name: str, graph: ir.Graph) -> ir.Value:
    """Return the value of the inference graph called `name`; it need not be an output."""
    if name not in values:
        outputs = ", ".join(f"`{v.name}`" for v in graph.outputs)
        raise ArgumentError(
            Diagnostic(
                A100,
                f"no such value in the model `{name}`",
                place="output=",
                needed=f"an output ({outputs}) or another value of the inference graph",
                hint=did_you_mean(nearest(name, sorted(values))),
            )
        )
    return values[name]


def wrong_outputs(outputs: Sequence[ir.Value], needed: int, loss_name: str, *, given: bool) -> ArgumentError:
    """Return the error for a loss that needs a different number of outputs."""
    names = ", ".join(f"`{v.name}`" for v in outputs)
    return ArgumentError(
        Diagnostic(
            A101,
            f"`{loss_name}` reads {counted(needed, 'output')}, "
            f"{'output= names' if given else 'the model has'} {len(outputs)}",
            place="output=",
            found=names or "none",
            needed=f"output= with {'one name' if needed == 1 else f'{needed} names'}",
            hint="" if given else "onward doctor FILE says which output a loss can read",
        )
    )


def label_specs(label: LabelArgument, specs: Sequence[LabelSpec] | None, names: Names) -> dict[str, LabelSpec]:
    """Return the label inputs by name, from the argument `label` and the labels of the loss (None: unknown)."""
    if isinstance(label, Mapping):
        return {name: _spec(name, given) for name, given in label.items()}
    given_names = [] if label is None else [label] if isinstance(label, str) else list(label)
    if specs is None and label is None:
        return {}
    if specs is None:
        raise ArgumentError(
            Diagnostic(
                A101,
                "a custom loss does not define the type and shape of its labels",
                place="label=",
                needed='label={"labels": ("int64", ["N"])}, or label=None if the loss reads no labels',
            )
        )
    if len(given_names) == 1 and len(specs) > 1:
        given_names = [f"{given_names[0]}/{s.suffix}" if s.suffix else given_names[0] for s in specs]
    if not specs:
        return {}
    if len(given_names) != len(specs):
        raise ArgumentError(
            Diagnostic(
                A101,
                "the loss has a different number of labels",
                place="label=",
                found=f"{len(given_names)}: {given_names}",
                needed=f"{len(specs)}",
            )
        )
    return dict(zip(given_names, specs, strict=True))


def _spec(name: str, given: Any) -> LabelSpec:
    if isinstance(given, LabelSpec):
        return given
    try:
        dtype, shape = given
        return LabelSpec(element_type(dtype), tuple(shape))
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            Diagnostic(
                A101,
                f"invalid description of label `{name}`",
                place="label=",
                found=repr(given),
                needed='a pair of element type and shape, such as ("int64", ["N"])',
            )
        ) from error
