"""A small backend in numpy, for tests of the loop: linear regression with momentum, and a noise key in the state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from onward.backends.base import Session, register_backend
from onward.compiler.program import Entry, PlainGraph, Program, TensorSpec
from onward.model.serde import from_proto

WIDTH = 3


def linear_program(batch: int | str | None = "N", rate: float = 0.05) -> Program:
    """Return y = x @ w + b with loss mean((y - t)²), and a graph of the same mathematics for the tracer."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, WIDTH])
    t = helper.make_tensor_value_info("t", TensorProto.FLOAT, [batch, 1])
    w = helper.make_tensor_value_info("w", TensorProto.FLOAT, [WIDTH, 1])
    b = helper.make_tensor_value_info("b", TensorProto.FLOAT, [1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 1])
    loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    forward = [
        helper.make_node("MatMul", ["x", "w"], ["xw"], name="/linear/MatMul"),
        helper.make_node("Add", ["xw", "b"], ["y"], name="/linear/Add"),
    ]
    error = [
        helper.make_node("Sub", ["y", "t"], ["error"], name="/loss/Sub"),
        helper.make_node("Mul", ["error", "error"], ["square"], name="/loss/Mul"),
        helper.make_node("ReduceMean", ["square"], ["loss"], name="/loss/ReduceMean", keepdims=0),
    ]
    opset = [helper.make_opsetid("", 18)]
    infer = helper.make_model(helper.make_graph(forward, "infer", [x, w, b], [y]), opset_imports=opset, ir_version=10)
    step = helper.make_model(
        helper.make_graph([*forward, *error], "step", [x, t, w, b], [loss, y]), opset_imports=opset, ir_version=10
    )
    plain = PlainGraph("step", from_proto(step).ir, ("loss", "y"))
    return Program(
        entries={"train": Entry("train", plain, plain, learning_rates=("learning_rate",))},
        infer_graph=PlainGraph("infer", from_proto(infer).ir, ("y",)),
        inputs=(TensorSpec("x", "float32", (batch, WIDTH)),),
        targets=(TensorSpec("t", "float32", (batch, 1)),),
        settings={"learning_rate": np.float32(rate)},
        state={
            "w": np.zeros((WIDTH, 1), np.float32),
            "b": np.zeros(1, np.float32),
            "momentum/w": np.zeros((WIDTH, 1), np.float32),
            "momentum/b": np.zeros(1, np.float32),
            "count": np.zeros((), np.int64),
        },
        parameters=("w", "b"),
    )


class FakeSession(Session):
    """Runs `linear_program`; noise that depends on the counter makes every step different."""

    def __init__(self, program: Program, threads: int = 1, poison: int = -1, delay: float = 0.0) -> None:
        super().__init__(program)
        self.calls = 0
        self._threads = threads
        self._poison = poison  # the counter value at which the new state becomes NaN behind a finite loss
        self._delay = delay
        self._state = {k: np.array(v) for k, v in program.state.items()}

    def _forward(self, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
        with np.errstate(all="ignore"):
            return feeds["x"] @ self._state["w"] + self._state["b"]

    def step(self, feeds: Mapping[str, np.ndarray], *, entry: str | None = None) -> dict[str, np.ndarray]:
        if self._delay:
            import time

            time.sleep(self._delay)
        self.calls += 1
        s = self._state
        key = np.array([7, int(s["count"])], dtype=np.uint64)
        noise = np.random.Generator(np.random.Philox(key=key)).normal(0, 0.01, feeds["t"].shape).astype(np.float32)
        y = self._forward(feeds)
        with np.errstate(all="ignore"):
            error = y - feeds["t"] + noise
            loss = np.mean(np.square(error), dtype=np.float32)
            rate = np.float32(feeds.get("learning_rate", self.program.settings["learning_rate"]))
            dw = (2 / len(error)) * feeds["x"].T @ error
            db = 2 * error.mean(axis=0)
        if int(s["count"]) == self._poison:
            dw = dw * np.float32("nan")
        new = dict(s)
        with np.errstate(all="ignore"):
            for name, grad in (("w", dw), ("b", db)):
                new[f"momentum/{name}"] = np.float32(0.9) * s[f"momentum/{name}"] + grad.astype(np.float32)
                new[name] = s[name] - rate * new[f"momentum/{name}"]
        new["count"] = s["count"] + 1
        self._state = new
        return {"loss": loss, "y": y}

    def run_graph(self, graph: PlainGraph, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        y = self._forward(feeds)
        return (
            {"y": y}
            if graph.name == "infer"
            else {"loss": np.mean(np.square(y - feeds["t"]), dtype=np.float32), "y": y}
        )

    def initialize(self, seed: int = 0) -> None:
        self._state = {k: np.array(v) for k, v in self.program.state.items()}
        rng = np.random.Generator(np.random.Philox(key=seed))
        self._state["w"] = rng.normal(size=(WIDTH, 1)).astype(np.float32)

    def get_state(self) -> dict[str, np.ndarray]:
        return {k: np.array(v) for k, v in self._state.items()}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        for name, value in state.items():
            assert value.shape == self._state[name].shape
            self._state[name] = np.array(value, dtype=self._state[name].dtype)

    def describe(self) -> dict[str, Any]:
        return {"backend": "fake", "threads": self._threads}


register_backend("fake", FakeSession)


def linear_data(samples: int = 100, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return x and t = x @ (1, -2, 3) + 0.5."""
    rng = np.random.Generator(np.random.Philox(key=seed))
    x = rng.normal(size=(samples, WIDTH)).astype(np.float32)
    return x, (x @ np.array([[1.0], [-2.0], [3.0]], np.float32) + np.float32(0.5)).astype(np.float32)
