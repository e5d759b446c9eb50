"""The tensorflow backend, and `to_tensorflow`: convert a training model to a `tf.Module`.

TensorFlow is imported on first use.
"""

from __future__ import annotations

import inspect
from typing import Any

from onward import versions
from onward.arguments import check_names
from onward.backends.onnx_backend import OnnxBackend
from onward.backends.onnx_backend import check_model as check_model
from onward.errors import require_extra

BACKEND = OnnxBackend("tensorflow")
"""ONNX's interface: `onnx.backend.test.BackendTest(onward.backends.tensorflow, __name__)` runs ONNX's tests."""
prepare, run_model, run_node = BACKEND.prepare, BACKEND.run_model, BACKEND.run_node
supports_device, is_compatible = BACKEND.supports_device, BACKEND.is_compatible
prepare_training = BACKEND.prepare_training


def to_tensorflow(model: Any, mode: str = "both", **options: Any) -> Any:
    """Return `model` as a real `tf.Module`, whose state are real `tf.Variable`s under their ONNX names.

    `module(*inputs)` is the inference graph. `module.train_step(*inputs, *targets)` runs a whole training step (loss,
    gradients, what the file computes between gradients and optimizer, the optimizer) and then replaces the state, all
    at once; it returns the loss and the other outputs by name. `module.loss(...)` is the loss in training mode, for
    your own loop, and `module.evaluate(...)` the one in inference mode. Only what the training information trains is
    `trainable`; what nothing changes is a constant. All are `tf.function`s, and `tf.saved_model.save(module, path)`
    writes them so that they load without Onward.

    Args:
        model: a `TrainingModel`, a `ModelProto`, or a path.
        mode: "both"; "inference" has no variables but those that the inference graph reads, and no training step;
            "training" has no inference graph.
        options: `sizes={"batch": 32}` fixes dimensions that the model leaves open. `gradients="graph"` runs the
            backward pass of the compiled program instead of a GradientTape. `report=True` returns (module, report):
            which nodes of each graph still need a transposition between ONNX's order of axes and TensorFlow's.
            `ragged=True` takes and gives sequences as `tf.RaggedTensor`s, whose rows are the elements.

    Raises:
        ArgumentError: the mode or an option is unknown, or it needs training information that the model lacks.
        BackendError: lists all operators that the tensorflow backend lacks.
    """
    versions.check(installed_tensorflow("onward.to_tensorflow"))
    from onward.backends.tensorflow.convert import convert

    valid = list(inspect.signature(convert).parameters)[2:]
    check_names("option of `to_tensorflow`", options, valid)
    return convert(model, mode, **options)


def installed_tensorflow(purpose: str) -> dict[str, str]:
    """Return TensorFlow's version for `onward.versions.check`; raise an error that names `purpose` without it."""
    try:
        import tensorflow
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        raise require_extra("tensorflow", "tensorflow", purpose) from error
    return {"tensorflow-cpu": tensorflow.__version__}
