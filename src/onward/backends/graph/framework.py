"""`Framework`: what the interpreter must know of PyTorch, JAX or TensorFlow."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from onward.backends.graph.host import Host, host_constant, is_host_constant
from onward.backends.graph.registry import Registry

B302 = "B302"


class Framework(abc.ABC):
    """The tensors of a framework; each backend has one instance.

    A value of a graph is a tensor of the framework, a `Host`, a list (a sequence) or None (an absent optional).
    """

    title: str  # as a message names the framework
    # What its kernels and our handlers raise for inputs that do not fit.
    failures: tuple[type[Exception], ...] = (
        RuntimeError, IndexError, ValueError, TypeError, AttributeError, KeyError, ZeroDivisionError,
    )  # fmt: skip

    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    @abc.abstractmethod
    def to_tensor(self, array: np.ndarray) -> Any:
        """Return a tensor with the values of `array`; raise BackendError B302 without its element type."""

    @abc.abstractmethod
    def from_host(self, value: Host, like: Sequence[Any] = ()) -> Any:
        """Return a host value as a tensor, where the values `like` are (the other inputs of an operator)."""

    @abc.abstractmethod
    def read(self, tensor: Any) -> list[Any]:
        """Return the elements of a tensor as a flat list of Python numbers.

        A framework that traces raises BackendError if the value is not known yet.
        """

    @abc.abstractmethod
    def select(self, tensor: Any, axis: int, index: int) -> Any:
        """Return one slice of a tensor along `axis`, without that axis."""

    @abc.abstractmethod
    def stack(self, tensors: list[Any], axis: int) -> Any:
        """Return tensors as one with a new axis."""

    def shape(self, value: Any) -> list[Any]:
        """Return the sizes of a value; a framework may give symbols for sizes that are not known while it traces."""
        return list(value.shape)

    def tensor(self, value: Any, like: Sequence[Any] = ()) -> Any:
        """Return a host value as a tensor, and any other value as it is."""
        return self.from_host(value, like) if isinstance(value, Host) else value

    def constant(self, array: np.ndarray) -> Any:
        """Return a constant as a host value where it is small and integer, else as a tensor."""
        return host_constant(array) if is_host_constant(array) else self.to_tensor(array)

    def numbers(self, value: Any) -> list[Any]:
        """Return the elements of any value as a flat list of Python numbers."""
        if isinstance(value, Host):
            return list(value.values)
        if isinstance(value, (list, tuple, np.ndarray)):
            flat: list[Any] = np.asarray(value).reshape(-1).tolist()
            return flat
        return self.read(value)

    def ints(self, value: Any) -> list[int]:
        """Return an integer value (axes, shape, pads) as Python numbers; those of a host value may be symbolic."""
        return list(value.values) if isinstance(value, Host) else [int(v) for v in self.numbers(value)]

    def floats(self, value: Any) -> list[float]:
        """Return a value (scales, thresholds) as Python numbers."""
        return [float(v) for v in self.numbers(value)]

    def number(self, value: Any) -> Any:
        """Return a value of one element as a Python number."""
        return self.numbers(value)[0]
