"""The compiler: from a training model to plain ONNX graphs, by recipes of passes."""
