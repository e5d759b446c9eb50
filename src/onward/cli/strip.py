"""`onward strip FILE -o OUT`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

if TYPE_CHECKING:
    import onnx

    from onward.model.training_model import TrainingModel


def strip(
    file: Annotated[
        Path,
        Argument(metavar="FILE|DIR", help="A training model (.onnx), or the directory of a run.", show_default=False),
    ],
    output: Annotated[Path, Option("-o", "--output", help="The file to write.", show_default=False)],
    average: Annotated[bool, Option("--average", help="Use the moving average of the weights.")] = False,
    quantize: Annotated[
        bool, Option("--quantize", help="Store the weights that `--dequantize` made floats as integers again.")
    ] = False,
    embed_preparation: Annotated[
        bool, Option("--embed-preparation", help="Let the model take raw data: prepare it inside, as in training.")
    ] = False,
) -> None:
    """Write the inference model alone: the same names and outputs, the current weights, no training information.

    Examples:
        onward strip net.train.onnx -o net.onnx
        onward strip net.train.onnx --average -o net.onnx
    """
    from onward.cli.console import stdout_console
    from onward.errors import counted
    from onward.model import serde
    from onward.model.inference import converted_inference, to_inference

    model = serde.load(file)
    if embed_preparation:
        stripped = _embedded(converted_inference(model, average=average, quantize=quantize), model)
    else:
        stripped = to_inference(model, average=average, quantize=quantize)
    serde.save(stripped, output)
    removed = f"removed {counted(len(model.entries), 'training entry')}"
    done = removed if model.entries else "it had no training information; the model is as it was"
    stdout_console(soft_wrap=True).print(f"wrote `{output}`: {done}")


def _embedded(stripped: TrainingModel, model: TrainingModel) -> onnx.ModelProto:
    from onward.errors import A101, ArgumentError, Diagnostic
    from onward.model.serde import to_proto
    from onward.train.data.embed import embed_preparation
    from onward.train.stored_model import store_preparation, stored_preparation

    preparation = stored_preparation(model)
    if preparation is None or not (preparation.features or preparation.normalises):
        raise ArgumentError(
            Diagnostic(
                A101,
                "the model carries no preparation",
                found="--embed-preparation",
                needed="a model that was saved after training on prepared data (`onward train … --output`)",
            )
        )
    proto, left = embed_preparation(to_proto(stripped), preparation)
    store_preparation(proto, left)
    return proto
