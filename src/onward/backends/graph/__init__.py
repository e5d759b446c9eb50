"""Run an ONNX graph with the operators of a framework; no framework is imported here.

A backend is one folder of handlers over this core: `framework.py` says how to make and read its tensors, `registry.py`
holds its table of operators, `ops/<family>.py` the handlers, and `interpreter.py` names the framework to the core.
"""
