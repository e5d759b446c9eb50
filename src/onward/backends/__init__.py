"""Backends by name. A framework is imported only when its backend is opened."""

from __future__ import annotations

from typing import Any

from onward import versions
from onward.backends.base import Session as Session
from onward.backends.base import make_session
from onward.backends.base import open_session as open_session
from onward.backends.base import register_backend as register_backend
from onward.compiler.program import Program


def _reference(program: Program, **options: Any) -> Session:
    from onward.backends.reference.session import ReferenceSession

    return make_session(ReferenceSession, "reference", program, options)


def _onnxruntime(program: Program, **options: Any) -> Session:
    from onward.backends.onnxruntime.session import OnnxRuntimeSession

    return make_session(OnnxRuntimeSession, "onnxruntime", program, options)


def _torch(program: Program, **options: Any) -> Session:
    from onward.backends.torch import installed_torch

    versions.check(installed_torch("the torch backend"))
    from onward.backends.torch.session import TorchSession

    return make_session(TorchSession, "torch", program, options)


def _jax(program: Program, **options: Any) -> Session:
    from onward.backends.jax import installed_jax

    versions.check(installed_jax("the jax backend"))
    from onward.backends.jax.session import JaxSession

    return make_session(JaxSession, "jax", program, options)


def _tensorflow(program: Program, **options: Any) -> Session:
    from onward.backends.tensorflow import installed_tensorflow

    versions.check(installed_tensorflow("the tensorflow backend"))
    from onward.backends.tensorflow.session import TensorFlowSession

    return make_session(TensorFlowSession, "tensorflow", program, options)


def _iree(program: Program, **options: Any) -> Session:
    from onward.backends.iree import installed_iree

    versions.check(installed_iree("the iree backend"))
    from onward.backends.iree.session import IreeSession

    return make_session(IreeSession, "iree", program, options)


register_backend("iree", _iree, profile="portable")
register_backend("tensorflow", _tensorflow, split=True)
register_backend("torch", _torch, split=True)
register_backend("jax", _jax, split=True)
register_backend("reference", _reference)
register_backend("onnxruntime", _onnxruntime)
