"""Readers of MLIR that are not ours: MLIR's own, in jaxlib and IREE, and xDSL's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


def reprinted(text: str) -> Iterator[str]:
    """Parse and verify a text with MLIR itself, and yield how MLIR prints it: in its usual and in its generic form."""
    pytest.importorskip("jaxlib.mlir", reason="MLIR's Python bindings are those of jaxlib")
    from jax.interpreters import mlir
    from jaxlib.mlir import ir

    with mlir.make_ir_context() as context:
        context.allow_unregistered_dialects = True
        module = ir.Module.parse(text)
        assert module.operation.verify()
        yield str(module)
        yield module.operation.get_asm(print_generic_op_form=True)


def read_by_xdsl(text: str) -> None:
    """Parse and verify a text with xDSL, which is written in Python and shares no code with MLIR."""
    pytest.importorskip("xdsl", reason="pip install xdsl")
    from xdsl.context import Context
    from xdsl.dialects import builtin, func
    from xdsl.parser import Parser

    context = Context(allow_unregistered=True)
    context.load_dialect(builtin.Builtin)
    context.load_dialect(func.Func)
    Parser(context, text).parse_module().verify()


def read_by_iree(text: str) -> None:
    """Parse and verify a text with the dialects of IREE, torch-mlir's included."""
    pytest.importorskip("iree.compiler", reason="pip install iree-base-compiler")
    import iree.compiler.ir as ir

    with ir.Context():
        assert ir.Module.parse(text).operation.verify()
