"""Train on IREE: each graph of the program is one native binary, compiled for the sizes that it is first used with."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from onward.backends import state as states
from onward.backends.base import Session
from onward.backends.iree.compiler import B503, Limits, compile_cached, compile_model, version
from onward.backends.iree.indices import check_indices, index_sizes
from onward.backends.iree.module import Device, Module, close_at_exit, to_numpy
from onward.backends.iree.static import B504, static_model
from onward.backends.iree.targets import EXACT, HOST
from onward.backends.iree.verify import check_graph
from onward.compiler.program import PlainGraph, Program
from onward.errors import BackendError, DataError, Diagnostic, named_node
from onward.graph import shapes
from onward.passes.portable.deny_list import denied
from onward.runtime import this_processor

_MOST_SIZES = 8  # of one graph: each is compiled apart
Sizes = tuple[tuple[int, ...], ...]


@dataclasses.dataclass
class _Loaded:
    """The binary of a graph for some sizes."""

    module: Module
    unproven: set[str]
    """Inputs that were zero throughout whenever it was compared: what the binary multiplies them with was not seen."""
    compared: bool = False


class IreeSession(Session):
    """A program running on IREE.

    Args:
        program: what to run. It has the portable profile, because IREE gets parts of the default one wrong.
        threads: how many; None for one on each core. The numbers do not depend on it.
        verify: compare each compiled graph with ONNX Runtime before its first result is used, and once more when a
            state that was zero then, such as the moments of an optimizer, is not any more.
        cache: keep binaries on disk for the next time (`onward.storage.cache`).
        flags: further flags of `iree-compile`.
        seconds: how long one compilation may take.
        gigabytes: how much memory it may take.
    """

    def __init__(
        self,
        program: Program,
        *,
        threads: int | None = None,
        verify: bool = True,
        cache: bool = True,
        flags: Sequence[str] = (),
        seconds: float = 900.0,
        gigabytes: float = 8.0,
    ) -> None:
        super().__init__(program)
        self._device = Device(threads)
        self._verify, self._compile = verify, compile_cached if cache else compile_model
        self._target = dataclasses.replace(HOST, flags=(*EXACT, *HOST.flags, *flags))
        self._limits = Limits(seconds, gigabytes)
        problems = [p for graph in program.graphs() for p in refused(graph)]
        if problems:
            raise BackendError(list(dict.fromkeys(problems)))
        self._kinds = {g: {v.name or "": v for v in g.model.graph.inputs} for g in program.graphs()}
        self._indexed = {g: index_sizes(g.model.graph) for g in program.graphs()}
        self._modules: dict[PlainGraph, dict[Sizes, _Loaded]] = {}
        self._state = {name: self._device.put(value) for name, value in program.state.items()}
        close_at_exit(self)

    def close(self) -> None:
        """Let go of all modules and arrays."""
        self._modules.clear()
        self._state.clear()

    @property
    def verifies(self) -> bool:
        return self._verify

    def step(self, feeds: Mapping[str, np.ndarray], *, entry: str | None = None) -> dict[str, np.ndarray]:
        outputs: dict[str, np.ndarray] = {}
        for graph in (e.step for e in states.chosen_entries(self.program, entry)):
            results = self._run(graph, feeds)
            outputs.update(_arrays(graph, {o: results[o] for o in graph.outputs}))
            self._state.update({state: results[output] for output, state in graph.replaces.items()})
        return outputs

    def run_graph(self, graph: PlainGraph, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return _arrays(graph, self._run(graph, feeds))

    def get_state(self) -> dict[str, np.ndarray]:
        return {name: to_numpy(value, self.program.state[name].dtype) for name, value in self._state.items()}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        self._state.update({n: self._device.put(v) for n, v in states.checked(self.program, state).items()})

    def describe(self) -> dict[str, Any]:
        return {
            "backend": "iree",
            "iree": version(),
            "processor": this_processor(),
            "threads": self._device.threads,
            "flags": list(self._target.flags),
        }

    def _run(self, graph: PlainGraph, feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return the outputs of a graph as arrays of the device."""
        given = {**self.program.settings, **feeds}
        states.require_feeds(graph.input_names, {**self._state, **given}, self.program)
        if graph not in self._kinds:
            self._kinds[graph] = {v.name or "": v for v in graph.model.graph.inputs}
            self._indexed[graph] = index_sizes(graph.model.graph)
        values = {n: self._fed(graph, n, given[n]) if n in given else self._state[n] for n in graph.input_names}
        sizes: Sizes = tuple(tuple(v.shape) for v in values.values())
        modules = self._modules.setdefault(graph, {})
        if sizes not in modules:
            if len(modules) >= _MOST_SIZES:
                raise _too_many(graph, [n for n in graph.input_names if n in feeds], modules)
            modules[sizes] = self._loaded(graph, values)
        loaded = modules[sizes]
        results = dict(zip(graph.output_names, loaded.module(list(values.values())), strict=True))
        if self._verify and (loaded.unproven or not loaded.compared):
            try:
                self._compare(graph, loaded, values, results)
            except BackendError:
                del modules[sizes]
                raise
        return results

    def _loaded(self, graph: PlainGraph, values: Mapping[str, Any]) -> _Loaded:
        place = f"the {graph.name} graph"
        model = static_model(graph, {n: v.shape for n, v in values.items()})
        code = self._compile(model, _identifier(graph.name), place, self._target, self._limits).code
        return _Loaded(Module(code, self._device, place), set(graph.input_names))

    def _compare(
        self, graph: PlainGraph, loaded: _Loaded, values: Mapping[str, Any], results: Mapping[str, Any]
    ) -> None:
        """Compare results with ONNX Runtime, unless the binary was compared with inputs that tell as much.

        The first step multiplies a momentum with moments of zero, which hides a wrong one.
        """

        def fetched(name: str) -> np.ndarray:
            value = values[name]
            return value if isinstance(value, np.ndarray) else to_numpy(value, self.program.state[name].dtype)

        seen = {name for name in loaded.unproven if fetched(name).any()}
        if loaded.compared and not seen:
            return
        model = static_model(graph, {n: v.shape for n, v in values.items()})
        fixed = {*self.program.settings, *(s.name for s in self.program.targets)}
        check_graph(graph, model, {n: fetched(n) for n in values}, fixed, _arrays(graph, results), self._again)
        loaded.compared = True
        loaded.unproven -= seen

    def _again(self, model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Compile a model anew and return its outputs."""
        code = compile_model(model, "again", "the graph with all results as outputs", self._target, self._limits).code
        results = Module(code, self._device, "the graph with all results as outputs")(list(feeds.values()))
        return {v.name: to_numpy(r) for v, r in zip(model.graph.output, results, strict=True)}

    def _fed(self, graph: PlainGraph, name: str, value: Any) -> np.ndarray:
        """Return what is fed: of the type and with the axes of the input, and within what it indexes."""
        array, wanted = np.asarray(value), self._kinds[graph][name]
        kind = None if wanted.dtype is None else wanted.dtype.numpy()
        dims = shapes.dims(wanted)
        fits = kind in (None, array.dtype) and (
            dims is None
            or (
                len(dims) == array.ndim
                and all(d in (None, n) or isinstance(d, str) for d, n in zip(dims, array.shape, strict=True))
            )
        )
        if not fits:
            raise DataError(
                Diagnostic(
                    "T100",
                    f"input `{name}` does not fit the model",
                    found=f"{array.dtype}{list(array.shape)}",
                    needed=f"{kind}{['?' if d is None else d for d in dims or ()]}",
                )
            )
        check_indices(name, array, self._indexed[graph])
        return array


def _arrays(graph: PlainGraph, results: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return outputs of a graph as arrays of numpy."""
    kinds = {v.name: v.dtype.numpy() for v in graph.model.graph.outputs if v.dtype is not None}
    return {name: to_numpy(value, kinds.get(name)) for name, value in results.items()}


def refused(graph: PlainGraph) -> list[Diagnostic]:
    """Return what in a graph IREE is known to get wrong, or has no type for."""
    found = []
    for each in denied(graph.model.graph):
        effects = [r["effect"] for r in each.entry.runtimes if r["runtime"] == "IREE"]
        if effects:
            found.append(
                Diagnostic(
                    B503,
                    f"{each.entry.what} is {effects[0]} on IREE",
                    place=f"{named_node(each.node)} of the {graph.name} graph",
                    hint='compile the model with profile="portable", which avoids it (docs/portable.md)',
                )
            )
    for value in (*graph.model.graph.inputs, *graph.model.graph.outputs):
        if value.dtype is not None and value.dtype.name == "STRING":
            found.append(Diagnostic(B503, f"IREE has no strings: `{value.name}`", place=f"the {graph.name} graph"))
    return found


def _identifier(name: str) -> str:
    """Return a name as MLIR has it."""
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in name)


def _too_many(graph: PlainGraph, names: list[str], modules: Mapping[Sizes, _Loaded]) -> BackendError:
    places = [graph.input_names.index(n) for n in names]
    seen = "; ".join(", ".join(f"{n}{list(s[p])}" for n, p in zip(names, places, strict=True)) for s in modules)
    return BackendError(
        Diagnostic(
            B504,
            f"the {graph.name} graph was given more than {_MOST_SIZES} different sizes",
            found=seen,
            needed="few sizes: IREE compiles a binary for each of them",
            hint="pad the data to one size, and choose a batch size that divides the number of samples; or use another "
            "backend, such as onnxruntime",
        )
    )
