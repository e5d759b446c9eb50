"""Values of a model in MLIR: their names, constants, and the types and roles that operations carry."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

import onnx

from onward.mlir.messages import difference, exact
from onward.mlir.syntax import (
    NONE,
    UNIT,
    Array,
    Attribute,
    Dense,
    Dictionary,
    Operation,
    Region,
    Sparse,
    Type,
    strings,
    text,
)
from onward.mlir.tensors import from_sparse, tensor_patch, to_dense, to_sparse
from onward.mlir.types import value_patch
from onward.mlir.weights import Weights

Names = Mapping[str, tuple[str, Type]]


class Export(Protocol):
    """One export of a model, as the writers of its functions see it."""

    weights: Weights
    opsets: Mapping[str, int]
    inferred: Mapping[str, Type]
    roles: Mapping[str, str]
    replaces: Mapping[str, str]

    def level(self, node: onnx.NodeProto) -> str:
        """Return the level of a node's operator."""

    def report(self, message: str, place: str = "", found: str = "") -> None:
        """Note what is wrong with the model."""


class ValueWriter:
    """Writes the values of one `func.func`; names of MLIR are unique in it."""

    def __init__(self, exporter: Export, function: onnx.FunctionProto | None = None) -> None:
        self.exporter = exporter
        self.opsets = dict(exporter.opsets)
        if function is not None:
            self.opsets.update({o.domain if o.domain != "ai.onnx" else "": o.version for o in function.opset_import})
        self.inferred: Mapping[str, Type] = {} if function is not None else exporter.inferred
        self.taken: set[str] = {"none"}
        self.needs_none = False

    def _define(self, name: str, kind: Type, names: dict[str, tuple[str, Type]], place: str) -> str:
        """Return the name in MLIR of a value that is defined here."""
        if name in names:
            self.exporter.report(f"`{name}` is defined twice", place)
        base = re.sub(r"[^A-Za-z0-9_$.-]", "_", name) or "v"
        base = f"_{base}" if base[0].isdigit() or base[0] == "-" else base
        made, count = base, 0
        while made in self.taken:
            count += 1
            made = f"{base}_{count}"
        self.taken.add(made)
        names[name] = (made, kind)
        return made

    def _find(self, name: str, names: Names, outer: Names, place: str) -> tuple[str, Type]:
        found = names.get(name) or outer.get(name)
        if found is None:
            self.exporter.report(f"nothing defines `{name}` before it is used", place)
            return "none", NONE
        return found

    def _initializer(
        self,
        tensor: onnx.TensorProto,
        region: Region,
        names: dict[str, tuple[str, Type]],
        infos: Mapping[str, onnx.ValueInfoProto],
        place: str,
    ) -> None:
        dense = to_dense(tensor)
        if dense is None:
            self.exporter.report(f"tensor `{tensor.name}` has no data that fits its shape and type", place)
            return
        patch = tensor_patch(tensor, dense, tensor.name)
        self._constant(tensor.name, dense, patch, region, names, infos, place)

    def _sparse_initializer(
        self,
        sparse: onnx.SparseTensorProto,
        region: Region,
        names: dict[str, tuple[str, Type]],
        infos: Mapping[str, onnx.ValueInfoProto],
        place: str,
    ) -> None:
        shown = to_sparse(sparse)
        name = sparse.values.name
        if shown is None:
            self.exporter.report(f"sparse tensor `{name}` has indices that MLIR cannot express", place)
            return
        made = from_sparse(shown, place)
        self._constant(name, shown, exact(made, sparse, difference(made, sparse)), region, names, infos, place)

    def _constant(
        self,
        name: str,
        shown: Dense | Sparse,
        patch: dict[str, Attribute],
        region: Region,
        names: dict[str, tuple[str, Type]],
        infos: Mapping[str, onnx.ValueInfoProto],
        place: str,
    ) -> None:
        """Write an initializer."""
        made = Operation("onnx.Constant", result_types=[shown.type])
        made.results = [self._define(name, shown.type, names, place)]
        if isinstance(shown, Dense):
            made.attributes["value"] = self.exporter.weights.put(shown, name)
        else:
            made.attributes["sparse_value"] = shown
        made.attributes["onward.initializer"] = Dictionary(patch)
        made.attributes["onward.outputs"] = strings(name)
        self._carry(made, [name], infos)
        region.operations.append(made)

    def _carry(self, made: Operation, outputs: Sequence[str], infos: Mapping[str, onnx.ValueInfoProto]) -> None:
        """Let an operation carry the stated types of its results, and their roles."""
        stated = [infos.get(name) for name in outputs]
        if not any(info is not None for info in stated):
            return
        made.attributes["onward.value_info"] = Array(
            tuple(
                UNIT if info is None else Dictionary(value_patch(info, kind))
                for info, kind in zip(stated, made.result_types, strict=False)
            )
        )
        roles = [role_of(info) for info in stated if info is not None]
        if any(roles):
            made.attributes["onward.role"] = text(", ".join(role for role in roles if role))

    def _unnamed(self) -> str:
        return self._define("", NONE, {}, "")


def role_of(info: onnx.ValueInfoProto) -> str:
    """Return the role that a file gives a value; docs/file_format.md has the list."""
    return next((p.value for p in info.metadata_props if p.key == "onward.role"), "")
