"""A compiled module, loaded: a function of device arrays."""

from __future__ import annotations

import atexit
import gc
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import iree.runtime as rt
import numpy as np

from onward.backends.iree.compiler import FUNCTION
from onward.errors import A101, ArgumentError, BackendError, Diagnostic

B501 = "B501"

_LOCK = threading.Lock()
_CONFIGS: dict[int, Any] = {}
_OPEN: weakref.WeakSet[Closes] = weakref.WeakSet()
# What IREE's runtime raises: its own failures are RuntimeError or ValueError, by their status.
FAILURES = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, MemoryError, OSError)


class Closes(Protocol):
    """Something that holds what belongs to IREE, and can let go of it."""

    def close(self) -> None:
        """Let go of all modules and arrays."""


def close_at_exit(holder: Closes) -> None:
    """Close `holder` before Python ends: IREE crashes where its objects are collected among the last."""
    _OPEN.add(holder)


@atexit.register
def _close_all() -> None:
    for holder in list(_OPEN):
        holder.close()
    gc.collect()


class Device:
    """The processor of this machine with a number of threads; one thread needs no workers."""

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(2))
        if self.threads < 1:
            raise ArgumentError(Diagnostic(A101, f"{threads} threads cannot run anything", needed="1 or more"))
        with _LOCK:
            if self.threads not in _CONFIGS:
                _CONFIGS[self.threads] = rt.Config(device=_new_device(self.threads))
            self.config = _CONFIGS[self.threads]

    def put(self, value: np.ndarray) -> Any:
        """Return an array of the device with a copy of `value`."""
        array = np.require(value, requirements="C")
        return rt.asdevicearray(self.config.device, array.reshape(np.shape(value)))


def _new_device(threads: int) -> Any:
    if threads == 1:
        return rt.get_driver("local-sync").create_default_device()
    rt.flags.parse_flags(f"--task_topology_max_group_count={threads}")  # read when a device is made
    return rt.get_driver("local-task").create_default_device()


class Module:
    """One function of a compiled module. Arguments are arrays of numpy or of the device; results are of the device."""

    def __init__(self, code: bytes, device: Device, place: str) -> None:
        self._place = place
        self._call: Any = None
        close_at_exit(self)
        try:
            context = rt.SystemContext(config=device.config)
            module = rt.VmModule.copy_buffer(context.instance, code)
            context.add_vm_module(module)
            self._call = getattr(getattr(context.modules, module.name), FUNCTION)
        except (*FAILURES, AttributeError, KeyError) as error:
            raise BackendError(
                Diagnostic(
                    B501,
                    f"IREE cannot load the compiled graph: {_first_line(error)}",
                    place=place,
                    hint="the file is damaged, or of another version or processor: compile it again",
                )
            ) from error

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Return the results, in order.

        Raises:
            BackendError: the run fails.
        """
        try:
            results = self._call(*arguments)
        except FAILURES as error:
            raise BackendError(
                Diagnostic(B501, f"IREE failed in {self._place}: {_first_line(error)}", place=self._place)
            ) from error
        if results is None:
            return []
        return list(results) if isinstance(results, tuple) else [results]

    def close(self) -> None:
        self._call = None


def to_numpy(value: Any, kind: np.dtype[Any] | None = None) -> np.ndarray:
    """Return a copy of an array of the device, with the element type `kind`: IREE's integers have no sign."""
    array = np.array(value.to_host())
    if kind is not None and kind.kind == "u" and array.dtype.kind == "i" and array.itemsize == kind.itemsize:
        return array.view(kind)
    return array


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:400]
