"""`onward grad`: add gradients to a model as outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option


def grad(
    file: Annotated[Path, Argument(help="The ONNX model.", show_default=False)],
    of: Annotated[str, Option("--of", help="The value to differentiate; its sum if it is not a scalar.")],
    wrt: Annotated[list[str], Option("--wrt", help="A value to differentiate with respect to; repeat for more.")],
    output: Annotated[Path, Option("-o", "--output", help="Where to write the model.")],
    functions: Annotated[
        bool, Option("--functions", help="Write the backward pass of each node as one function call.")
    ] = False,
) -> None:
    """Write the model with outputs grad/NAME: the derivative of OF with respect to each WRT, in plain ONNX operators.

    Examples:
        onward grad net.onnx --of logits --wrt images -o net.grad.onnx
        onward grad net.onnx --of logits --wrt fc.weight --wrt fc.bias -o net.grad.onnx
    """
    from onward.compiler.derivatives import gradient
    from onward.errors import counted
    from onward.model import serde

    names = [name for given in wrt for name in given.split(",") if name]
    before = len(serde.read_proto(file).graph.node)
    proto = gradient(file, of=of, wrt=names, functions=functions)
    serde.save(proto, output)
    added = len(proto.graph.node) - before
    outputs = ", ".join(o.name for o in proto.graph.output[-len(names) :])
    typer.echo(f"{output}: {counted(added, 'node')} added, outputs {outputs}")
