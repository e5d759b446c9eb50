"""Kernels in C for what ONNX Runtime has no fast operator for: gradients of convolutions, normalisations and rows.

They are operators of the domain `ai.onward.native` in a library that a C compiler of this machine makes once. Only the
sessions of this backend use them; compiled programs stay plain ONNX.
"""
