"""ONNX operators in JAX, one file per family. Each is one function; see `onward.backends.jax.registry`."""
