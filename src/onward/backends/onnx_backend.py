"""ONNX's own backend interface (`onnx.backend.base`), once for all backends.

`onward.backends.torch.prepare(model).run(inputs)` is what onnx's test runner, and the scoreboards, call. Each backend's
package has the functions of an `OnnxBackend` at module level, and in its `runner.py` a `Runner` for plain models.
"""

from __future__ import annotations

import importlib
import re
import unittest
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from onward.errors import A101, ArgumentError, Diagnostic, OnwardError

if TYPE_CHECKING:
    from onward.backends.base import Session

# No operator, no element type, no sizes that depend on data, no gradient: what a backend says it does not have.
_ABSENT = frozenset({"B300", "B302", "B503", "B504", "D201", "D202", "D203"})
# What a runtime says where it has no kernel for an operator or an element type.
_FAILED = frozenset({"B200", "B201", "B301", "B500"})
_NO_KERNEL = re.compile(
    r"NOT_IMPLEMENTED|not implemented for|is not implemented|No Op registered|NotImplementedError|has no strings"
    r"|not (?:yet )?supported|[Uu]nsupported (?:data ?type|dtype|type)|Type 'tensor\(\w+\)' of input parameter"
    r"|Could not find device for node|does not support|unknown initializer data type"
    r"|Unrecognized (?:data type|attribute)|\*guarantees\* support for models stamped"
    r"|Unsupported model IR version|No corresponding Numpy type|is not a registered function/op"
    r"|Unknown ONNX tensor element type"
    r"|Value for attr '\w+' of \w+ is not in the list of allowed values"
)


class NotSupported(unittest.SkipTest):
    """The backend has no such operator or element type; test runners count it as a skip.

    onnx's runner counts its own `BackendIsNotSupposedToImplementIt` as a pass, so this class is not derived from it.
    """


class Prepared:
    """A model that is ready to run, as `onnx.backend.base.BackendRep` is."""

    def __init__(self, runner: Any, names: Sequence[str]) -> None:
        self._runner = runner
        self._names = list(names)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return all outputs of the model, in order: arrays, lists (sequences) or None (an absent optional).

        `inputs` are in the order of the model's inputs, or by name.

        Raises:
            NotSupported: the backend has no kernel for an operator or an element type of the model.
            BackendError: the run fails.
        """
        feeds = dict(inputs) if isinstance(inputs, Mapping) else self._by_name(inputs)
        with _Skips():
            return tuple(self._runner.run(feeds))

    def _by_name(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, np.ndarray):
            inputs = [inputs]
        if len(inputs) > len(self._names):
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "too many inputs for the model",
                    found=str(len(inputs)),
                    needed=f"at most {len(self._names)}: {', '.join(self._names) or 'none'}",
                )
            )
        return dict(zip(self._names, inputs, strict=False))


class Training:
    """A training entry of a model that is ready to run: `step`, `initialize`, `state`."""

    def __init__(self, session: Session, entry: str | None, renamed: Mapping[str, str]) -> None:
        self._session, self._entry, self._renamed = session, entry, renamed

    def step(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run one training step on a batch, by name, and replace the state; return the outputs of the step."""
        feeds = {self._renamed.get(name, name): value for name, value in inputs.items()}
        with _Skips():
            return self._session.step(feeds, entry=self._entry)

    def initialize(self, seed: int = 0) -> None:
        """Set the state as the initialization graphs of the model say."""
        with _Skips():
            self._session.initialize(seed)

    def state(self) -> dict[str, np.ndarray]:
        """Return a copy of the state (parameters, moments, counters) by name."""
        return self._session.get_state()


class OnnxBackend:
    """The backend `name` as ONNX's test runner calls it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def supports_device(self, device: str) -> bool:
        """Return whether the backend runs on a device, such as "CPU" or "CUDA:0"."""
        return device.partition(":")[0].upper() == "CPU"

    def is_compatible(self, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Return whether the backend has every operator of a model.

        Raises:
            OnwardError: the model is not valid.
        """
        try:
            self.prepare(model, device, **kwargs)
        except NotSupported:
            return False
        return True

    def prepare(self, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Prepared:
        """Return a model ready to run; its `Gradient`, `Adam`, `Adagrad` and `Momentum` nodes are lowered first.

        `kwargs` are those of onnx's interface; none changes anything.

        Raises:
            NotSupported: the backend lacks an operator or an element type of the model, or there is no gradient.
            OnwardError: the model is not valid.
        """
        self._check_device(device)
        check_model(model)
        with _Skips():
            runner = self._module("runner").Runner(model)
        initialized = {t.name for t in model.graph.initializer}
        inputs = [v.name for v in model.graph.input]
        # A test that feeds an initializer, too, feeds all inputs; so those without a default come first.
        return Prepared(runner, sorted(inputs, key=initialized.__contains__))

    def run_model(self, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Return the outputs of a model: `prepare` and `run` in one."""
        return self.prepare(model, device, **kwargs).run(inputs)

    def run_node(
        self,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Return the outputs of one node.

        `outputs_info` may give the type and shape of each output; otherwise onnx infers them. `opset_version` (default:
        the newest) is the version of the node's operator set.
        """
        model = node_model(node, inputs, outputs_info, kwargs.pop("opset_version", None))
        present = [value for value, name in zip(inputs, node.input, strict=False) if name]
        return self.prepare(model, device, **kwargs).run(present)

    def prepare_training(
        self, model: onnx.ModelProto, device: str = "CPU", entry: int | None = 0, **kwargs: Any
    ) -> Training:
        """Return a model with `training_info` ready to train with one entry of it; None runs all entries in turn.

        Raises:
            NotSupported: the backend lacks an operator or an element type of the model, or there is no gradient.
            OnwardError: the model is not valid, or has no such entry.
        """
        from onward.backends.base import open_session, profile_of, wants_split
        from onward.compiler.compile import compile_model, named_entries
        from onward.upgrade import normalise
        from onward.upgrade.graph_call import has_graph_call, remove_graph_calls

        self._check_device(device)
        renamed: dict[str, str] = {}  # the inputs of a file of ONNX 1.7 keep their names here
        if has_graph_call(model):  # such a file is checked as what it means today
            legacy, model = model, onnx.ModelProto()
            model.CopyFrom(legacy)
            by_entry = remove_graph_calls(model)
            for names in by_entry if entry is None else by_entry[entry : entry + 1]:
                renamed |= names
        check_model(model)
        with _Skips():
            training = normalise(model)
            positions = {training.entries.index(found): name for name, found in named_entries(training).items()}
            if entry is not None and entry not in positions:
                raise ArgumentError(
                    Diagnostic(
                        A101,
                        f"training_info[{entry}] updates nothing, or does not exist",
                        found=f"entries {', '.join(map(str, positions)) or 'none'}",
                    )
                )
            program = compile_model(training, split=wants_split(self.name), profile=profile_of(self.name))
            session = open_session(program, self.name)
        return Training(session, None if entry is None else positions[entry], renamed)

    def _check_device(self, device: str) -> None:
        if not self.supports_device(device):
            raise NotSupported(f"the {self.name} backend does not support device {device} here")

    def _module(self, part: str) -> Any:
        """Import a module of the backend; the error of a framework that is not installed names it."""
        installed = getattr(importlib.import_module(f"onward.backends.{self.name}"), f"installed_{self.name}", None)
        if installed is not None:
            installed(f"the {self.name} backend")
        return importlib.import_module(f"onward.backends.{self.name}.{part}")


def check_model(model: onnx.ModelProto, **kwargs: Any) -> None:
    """Raise an error that lists everything in a model that Onward's strict checker refuses.

    Raises:
        CheckFailed: the model breaks the ONNX standard.
        ModelError: it is not a model.
    """
    from onward.check import check

    check(model, **kwargs).raise_if_errors()


def node_model(
    node: onnx.NodeProto,
    inputs: Sequence[Any],
    outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
    opset: int | None = None,
) -> onnx.ModelProto:
    """Return a model of one node whose inputs have the types of `inputs`."""
    given = [
        onnx.helper.make_value_info(name, _type_of(value))
        for name, value in zip(node.input, inputs, strict=False)
        if name
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    for output, (dtype, shape) in zip(outputs, outputs_info or (), strict=False):
        kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        output.CopyFrom(onnx.helper.make_tensor_value_info(output.name, kind, shape))
    domain = "" if node.domain == "ai.onnx" else node.domain
    version = opset or onnx.defs.onnx_opset_version()
    imports = [onnx.helper.make_opsetid("", version if not domain else onnx.defs.onnx_opset_version())]
    if domain:
        known = [s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.domain == domain]
        imports.append(onnx.helper.make_opsetid(domain, opset or max(known, default=1)))
    graph = onnx.helper.make_graph([node], "node", given, outputs)
    model = onnx.helper.make_model(graph, opset_imports=imports)
    model.ir_version = onnx.helper.find_min_ir_version_for(imports, ignore_unknown=True)
    return onnx.shape_inference.infer_shapes(model)


def _type_of(value: Any) -> onnx.TypeProto:
    if isinstance(value, (list, tuple)):
        return onnx.helper.make_sequence_type_proto(_type_of(value[0] if value else np.zeros(0, np.float32)))
    array = np.asarray(value)
    if array.dtype.kind in "OUS":
        return onnx.helper.make_tensor_type_proto(onnx.TensorProto.STRING, array.shape)
    return onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


class _Skips:
    """Turns the errors of Onward that mean "not here" into `NotSupported`."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, OnwardError) and all(map(_is_absent, error.diagnostics)):
            raise NotSupported("; ".join(d.message for d in error.diagnostics)) from error


def _is_absent(problem: Diagnostic) -> bool:
    return problem.code in _ABSENT or (problem.code in _FAILED and bool(_NO_KERNEL.search(problem.message)))
