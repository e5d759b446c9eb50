"""The compiler: recipes of passes turn a training model into plain ONNX graphs."""
