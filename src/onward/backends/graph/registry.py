"""The table of a framework's operators: one function per operator and version, in its ops/<family>.py.

    @op("Gather", since=1)
    def gather(attributes, data, indices): ...

A function takes the node's attributes (see `Attributes`) and its inputs in schema order (None where absent) and returns
one tensor or a tuple. Versions are chosen by floor: the highest registered one not above the node's (decision 6).
"""

from __future__ import annotations

import copy
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

from onward.errors import BackendError, Diagnostic
from onward.graph.schema import attribute_default, raw_schema

Handler = Callable[..., Any]

B300 = "B300"


class Registry:
    """The operators of the backend `name`, which the modules of the package `ops` register."""

    def __init__(self, name: str, ops: str) -> None:
        self.name = name
        self._ops = ops
        self._handlers: dict[tuple[str, str], dict[int, Handler]] = {}
        self._loaded = False

    def op(self, *op_types: str, since: int = 1, domain: str = "") -> Callable[[Handler], Handler]:
        """Register the decorated function for `op_types` from version `since` on."""

        def register(handler: Handler) -> Handler:
            for op_type in op_types:
                versions = self._handlers.setdefault((domain, op_type), {})
                if since in versions:
                    raise TypeError(f"{op_type} since {since} is registered twice")
                versions[since] = handler
            return handler

        return register

    def find(self, op_type: str, domain: str, opset: int) -> Handler | None:
        """Return the handler of the highest version not above `opset`, or None."""
        self._load()
        versions = self._handlers.get(("" if domain == "ai.onnx" else domain, op_type), {})
        fitting = [v for v in versions if v <= opset or domain not in ("", "ai.onnx")]
        return versions[max(fitting)] if fitting else None

    def supported(self) -> dict[tuple[str, str], list[int]]:
        """Return every registered operator with its versions."""
        self._load()
        return {key: sorted(versions) for key, versions in sorted(self._handlers.items())}

    def missing(self, names: list[str]) -> BackendError:
        """Return the error that lists every operator without a handler."""
        return BackendError([Diagnostic(B300, f"the {self.name} backend has no operator `{n}`") for n in names])

    def _load(self) -> None:
        """Import every family, once."""
        if self._loaded:
            return
        for module in pkgutil.iter_modules(importlib.import_module(self._ops).__path__):
            importlib.import_module(f"{self._ops}.{module.name}")
        self._loaded = True


def _defaults(op_type: str, domain: str, opset: int) -> dict[str, Any]:
    """Return the schema's defaults, read once, because a tracer such as torch.compile cannot read the schema."""
    raw = raw_schema(op_type, domain, opset if domain in ("", "ai.onnx") else None)
    names = () if raw is None else raw.attributes
    found = {name: attribute_default(op_type, domain, opset, name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


class Attributes:
    """A node's attributes as plain Python values, with the schema's defaults: `attributes["axis"]`."""

    def __init__(self, op_type: str, domain: str, opset: int, given: Mapping[str, Any], outputs: int) -> None:
        self.op_type = op_type
        self._values = dict(given)
        self._defaults = _defaults(op_type, domain, opset)
        self.outputs = outputs  # number of outputs; others need not be computed
        self.opset = opset

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute, else the schema's default, else `default`."""
        if name in self._values:
            return self._values[name]
        return self._defaults.get(name, default)

    def __getitem__(self, name: str) -> Any:
        return self.get(name)

    def replaced(self, **changes: Any) -> Attributes:
        """Return a copy with other values."""
        other = copy.copy(self)
        other._values = {**self._values, **changes}
        return other

    def __contains__(self, name: str) -> bool:
        return name in self._values
