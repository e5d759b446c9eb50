"""The training model: one inference graph, its training entries, and the standard ONNX file that holds them."""
