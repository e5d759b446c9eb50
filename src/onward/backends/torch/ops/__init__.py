"""ONNX operators in PyTorch, one file per family. Each is one function; see `onward.backends.torch.registry`."""
