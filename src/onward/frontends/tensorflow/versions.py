"""What Onward uses of TensorFlow and tf2onnx beyond their public interfaces: all that depends on their versions."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx
import tensorflow as tf
import tf2onnx
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.framework import convert_to_constants, op_def_registry
from tensorflow.python.grappler import tf_optimizer
from tensorflow.python.training.saver import export_meta_graph
from tf2onnx.onnx_opset.nn import BatchNorm

from onward import versions

OPSET = 18
"""The newest operator set that tf2onnx writes."""


def check_versions() -> None:
    """Raise unless the installed TensorFlow and tf2onnx are new enough."""
    versions.check({"tensorflow-cpu": tf.__version__, "tf2onnx": tf2onnx.__version__})


def inlined(function: Any) -> Any:
    """Return the GraphDef of a concrete function in which all calls are inlined, but no loop and no branch.

    Nothing else is optimized: weights are not folded, and what only has effects stays.
    """
    with _quiet():  # about collections of the graph that cannot be written
        return _inlined(function)


def _inlined(function: Any) -> Any:
    graph_def = convert_to_constants.disable_lower_using_switch_merge(function.graph.as_graph_def())
    for one in graph_def.library.function:
        one.attr.pop("api_implements", None)  # another implementation of the function, which would not be inlined
    meta = export_meta_graph(graph_def=graph_def, graph=function.graph)
    meta.collection_def["train_op"].node_list.value.extend(t.name for t in [*function.inputs, *function.outputs])
    config = config_pb2.ConfigProto()
    options = config.graph_options.rewrite_options
    options.min_graph_nodes = -1  # small graphs too
    options.optimizers.append("function")
    options.function_optimization = rewriter_config_pb2.RewriterConfig.AGGRESSIVE
    return tf_optimizer.OptimizeGraph(config, meta)


CUSTOM_GRADIENT = (
    "leave tf.custom_gradient out where its derivative is that of the function; x + tf.stop_gradient(f(x) - x) has the "
    "value of f and the slope 1; an optimizer clips gradients"
)
"""What to do about a function that has a derivative of its own."""


def owner_of_gradient(kind: str) -> str:
    """Return the function to which a tf.custom_gradient belongs, with its place; empty if TensorFlow does not know."""
    from tensorflow.python.framework import ops

    try:
        registered = ops.gradient_registry.lookup(kind)
    except LookupError:  # a SavedModel from another process
        return ""
    gradient = _held(_held(registered, "tape_grad_fn"), "grad_fn")
    if gradient is None:
        return ""
    name = gradient.__qualname__.rsplit(".<locals>", 1)[0].rsplit("<locals>.", 1)[-1]
    return f"`{name}` ({os.path.basename(gradient.__code__.co_filename)} line {gradient.__code__.co_firstlineno})"


def _held(function: Any, name: str) -> Any:
    """Return what a nested function knows under a name of the function around it; None if it knows nothing."""
    code = getattr(function, "__code__", None)
    if code is None or name not in code.co_freevars:
        return None
    return function.__closure__[code.co_freevars.index(name)].cell_contents


def is_stateful(op_type: str) -> bool:
    """Return whether an operator has effects or another result in each call."""
    found = op_def_registry.get(op_type)
    return found is not None and bool(found.is_stateful)


def to_onnx(graph_def: Any, inputs: Sequence[str], outputs: Sequence[str], handlers: Mapping[str, Any]) -> Any:
    """Return the ModelProto that tf2onnx makes of a graph; what it does not know stays an operator of TensorFlow."""
    with _quiet():
        proto, storage = tf2onnx.convert.from_graph_def(
            graph_def,
            input_names=list(inputs),
            output_names=list(outputs),
            opset=OPSET,
            custom_op_handlers={name: (function, []) for name, function in handlers.items()},
        )
    assert storage is None
    assert isinstance(proto, onnx.ModelProto)
    return proto


def batch_norm_of_inference(ctx: Any, node: Any) -> None:
    """Let tf2onnx translate a fused batch normalisation in inference mode."""
    BatchNorm.version_9(ctx, node)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Let tf2onnx be silent: what it only logs, Onward finds in the result and says as an error."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def python_function(function: Any) -> Any:
    """Return the Python function behind a tf.function; None for one that a SavedModel restored."""
    return getattr(function, "python_function", None)


def is_keras(thing: Any) -> bool:
    """Return whether `thing` is a model or a layer of any Keras."""
    return any(kind.__module__.split(".")[0] in ("keras", "tf_keras") for kind in type(thing).__mro__)


def is_keras_export(loaded: Any) -> bool:
    """Return whether a loaded SavedModel was written by `model.export` of Keras 3: an archive of its endpoints."""
    return hasattr(loaded, "_misc_assets") and hasattr(loaded, "serve")


def is_concrete(function: Any) -> bool:
    """Return whether `function` is a concrete function."""
    return hasattr(function, "structured_input_signature") and hasattr(function, "captured_inputs")


def is_tf_function(function: Any) -> bool:
    """Return whether `function` is a tf.function, also one that a SavedModel restored."""
    return hasattr(function, "get_concrete_function")


def parameter_names(function: Any) -> list[str]:
    """Return the names of the arguments of a Python function, a tf.function, or a restored one."""
    for concrete in getattr(function, "concrete_functions", None) or []:
        return [name for name in concrete.function_type.parameters if name != "self"]
    try:
        return list(inspect.signature(python_function(function) or function).parameters)
    except (TypeError, ValueError):
        return []


def declared_signature(function: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the structure of TensorSpecs that a function takes, where it declares one."""
    for concrete in getattr(function, "concrete_functions", None) or []:
        args, kwargs = concrete.structured_input_signature
        return tuple(a for a in args if _is_specs(a)), {k: v for k, v in kwargs.items() if _is_specs(v)}
    declared = getattr(function, "input_signature", None)
    return None if declared is None else (tuple(declared), {})


def _is_specs(structure: Any) -> bool:
    return all(isinstance(leaf, tf.TensorSpec) for leaf in tf.nest.flatten(structure))
