"""One ONNX graph in memory, over onnx-ir: build it, walk it, edit it, infer its shapes."""
