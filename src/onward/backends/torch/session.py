"""Train on PyTorch: the program's plain graphs, interpreted with torch operators, eagerly or through torch.compile."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from onward.arguments import check_name, whole
from onward.backends import state as states
from onward.backends.base import Session
from onward.backends.graph.foreign import is_text
from onward.backends.graph.forward import why_not
from onward.backends.processes import world_size
from onward.backends.torch.autograd import Forward
from onward.backends.torch.batch_split import Shared, spread
from onward.backends.torch.interpreter import FAILURES, Interpreter, failure
from onward.backends.torch.tensors import to_numpy, to_tensor
from onward.compiler.program import Entry, PlainGraph, Program
from onward.errors import A101, ArgumentError, BackendError, Diagnostic, OnwardError

GRADIENTS = ("auto", "autograd", "graph")


class TorchSession(Session):
    """A program running on PyTorch.

    Args:
        program: what to run.
        device: where, as torch names it ("cpu", "cuda", "mps").
        compile: run the step through `torch.compile`.
        threads: threads inside an operator.
        gradients: `"autograd"` for PyTorch's own backward pass, `"graph"` for the one that is written out in the
            program, `"auto"` for PyTorch's wherever an entry differentiates one value with respect to its parameters.
        shard: with several processes, keep only a part of parameters and optimizer state in each; all
            processes must then read the state, and write checkpoints, together.

    Started by torchrun, all processes together make one run: see `onward.backends.torch.distributed`.
    """

    def __init__(
        self,
        program: Program,
        *,
        device: str = "cpu",
        compile: bool = False,
        threads: int | None = None,
        gradients: str = "auto",
        shard: bool = False,
    ) -> None:
        super().__init__(program)
        check_name("gradients=", gradients, GRADIENTS)
        if threads is not None:
            torch.set_num_threads(whole("threads", threads, 1))
        if device == "cuda" and world_size() > 1:
            device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        try:
            self.device = torch.device(device)
            torch.zeros(1, device=self.device)
        except (RuntimeError, AssertionError) as error:
            message = str(error).splitlines()[0]
            raise ArgumentError(Diagnostic(A101, f"device `{device}` cannot be used: {message}")) from error
        self.compile = compile
        self._graphs: dict[PlainGraph, Any] = {}
        self._group: Any = None
        if shard and world_size() == 1:
            raise ArgumentError(
                Diagnostic(A101, "`shard` is for several processes", found="one", hint="start them with torchrun")
            )
        if world_size() > 1:
            from onward.backends.torch.distributed import Group

            self._group = Group(program, self.device, shard=shard)
        self._state = {n: self._kept(v) for n, v in program.state.items()}
        self._forward = {entry.name: self._recorded(entry, gradients) for entry in program.entries.values()}

    @property
    def writer(self) -> bool:
        return self._group is None or self._group.rank == 0

    @property
    def processes(self) -> int:
        return 1 if self._group is None else int(self._group.size)

    @property
    def sharded(self) -> bool:
        return self._group is not None and bool(self._group.shard)

    def whole_batch(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(feeds) if self._group is None else self._group.whole_batch(feeds)

    def step(self, feeds: Mapping[str, np.ndarray], *, entry: str | None = None) -> dict[str, np.ndarray]:
        outputs: dict[str, np.ndarray] = {}
        for chosen in states.chosen_entries(self.program, entry):
            if self._group is not None:
                outputs.update(self._update(chosen, feeds, self._group.gradients(self, chosen.name, feeds)))
            elif self._forward[chosen.name] is not None:
                outputs.update(self._update(chosen, feeds, self.differentiate(chosen.name, feeds)))
            else:
                results = self._run(chosen.step, feeds, hot=True)
                outputs.update({o: self._array(results[o]) for o in chosen.step.outputs})
                self._state.update({state: results[output] for output, state in chosen.step.replaces.items()})
        return outputs

    def differentiate(self, name: str, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the gradients graph of an entry gives, found by autograd."""
        forward, module = self._forward[name]
        values = self._values(forward.input_names, feeds)
        try:
            found: dict[str, Any] = forward.differentiate(module, values, self._state)
        except FAILURES as error:
            raise self._failure(f"gradients {name}", error) from error
        return found

    def _update(self, entry: Entry, feeds: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Replace the state by what the update graph makes of the gradients; return what the caller sees of a step."""
        gradients, update = entry.gradients, entry.update
        assert gradients is not None
        assert update is not None
        read = update.input_names
        seen = [n for n in gradients.outputs if n in entry.step.outputs and n not in read]
        outputs = {n: self._array(results[n]) for n in seen}
        given = {n: results[n] if self.sharded else self._whole(results[n]) for n in gradients.outputs if n in read}
        early = {s: self._whole(results[o]) for o, s in gradients.replaces.items()}
        following = self._run(update, {**feeds, **given}, hot=True)
        self._state.update(early)
        for output, state in update.replaces.items():
            value, before = following.pop(output), self._state[state]
            self._state[state] = value if self._group is None else self._group.as_kept(value, before)
        return outputs

    def run_graph(self, graph: PlainGraph, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {n: self._array(v) for n, v in self._run(graph, feeds).items()}

    def get_state(self) -> dict[str, np.ndarray]:
        return {name: to_numpy(self._whole(value)) for name, value in self._state.items()}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        checked = states.checked(self.program, state)
        self._state.update({n: self._kept(v) for n, v in checked.items()})

    def _recorded(self, entry: Entry, gradients: str) -> Any:
        """Return the forward part of an entry for autograd and the module that runs it, or None for the graph."""
        reason = why_not(entry)
        if not reason and self.sharded:
            reason = "each process has only a part of the parameters"
        if not reason and self.program.recompute is not None:
            reason = "the program says what is recomputed, and autograd keeps everything"
        if not reason and self.program.store is not None:
            reason = "the program says what is stored in 16 bits, and autograd keeps everything in float32"
        if gradients == "graph" or reason:
            if gradients == "autograd":
                raise ArgumentError(
                    Diagnostic(
                        A101,
                        f"autograd cannot find the gradients of entry `{entry.name}`: {reason}",
                        hint='use gradients="graph", or "auto"',
                    )
                )
            return None

        def make(graph: ir.Graph, opset: int, outputs: Sequence[ir.Value]) -> Any:
            interpreter = self._interpreter(graph, opset, outputs=outputs)
            return torch.compile(interpreter.run) if self.compile and self._group is None else interpreter.run

        assert entry.gradients is not None
        forward = Forward(entry.gradients, make, self._state, self._whole)
        return forward, forward if self._group is None else self._group.parallel(forward)

    def _interpreter(self, graph: ir.Graph, opset: int, **options: Any) -> Interpreter:
        alone = self._group is None
        made = Interpreter(graph, opset, **options) if alone else Shared(graph, opset, self._group, **options)
        made.to(self.device)
        return made

    def _kept(self, value: np.ndarray) -> Any:
        return to_tensor(value).to(self.device) if self._group is None else self._group.kept(value)

    def _whole(self, value: Any) -> torch.Tensor:
        whole: torch.Tensor = value if self._group is None else self._group.whole(value)
        return whole

    def _array(self, value: Any) -> np.ndarray:
        return value if is_text(value) else to_numpy(self._whole(value))

    def describe(self) -> dict[str, Any]:
        return {
            "backend": "torch",
            "torch": torch.__version__,
            "device": str(self.device),
            "threads": torch.get_num_threads(),
            "compile": self.compile,
            "gradients": {n: "graph" if forward is None else "autograd" for n, forward in self._forward.items()},
            **({} if self._group is None else {"processes": self._group.size, "shard": self._group.shard}),
        }

    def _run(
        self, graph: PlainGraph, feeds: Mapping[str, Any], *, cut: Sequence[str] = (), hot: bool = False
    ) -> dict[str, Any]:
        """Run a graph with the current state; with several processes, values may be shares.

        A `hot` graph runs at every step, so that compiling it pays.
        """
        if graph not in self._graphs:
            self._graphs[graph] = self._prepare(graph, cut, hot)
        run = self._graphs[graph]
        values = self._values(graph.input_names, feeds)
        with torch.no_grad():
            try:
                results: dict[str, Any] = run(values)
            except FAILURES as error:
                raise self._failure(graph.name, error) from error
        return results

    def _values(self, wanted: Collection[str], feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs of a graph: state, settings and what is fed, as tensors."""
        given = {**self.program.settings, **feeds}
        states.require_feeds(wanted, {**self._state, **given}, self.program)
        values = {n: v for n, v in self._state.items() if n in wanted}
        for name, value in given.items():
            if name in wanted:
                ready = isinstance(value, torch.Tensor) or spread(value) or is_text(value)
                values[name] = value if ready else to_tensor(value).to(self.device)
        return values

    def _failure(self, key: str, error: Exception) -> OnwardError:
        if isinstance(error, OnwardError):
            return error
        if self._group is not None and self._group.is_lost(error):
            lost: BackendError = self._group.lost(error)
            return lost
        return failure(f"the {key} graph", error)

    def _prepare(self, graph: PlainGraph, cut: Sequence[str], hot: bool) -> Any:
        """Return a graph ready to run."""
        interpreter = self._interpreter(graph.copy_model().graph, graph.opset, **({"cut": cut} if cut else {}))
        # Between processes the messages are in the middle of the graph, where the compiler does not see them.
        return torch.compile(interpreter.run) if self.compile and hot and self._group is None else interpreter.run
