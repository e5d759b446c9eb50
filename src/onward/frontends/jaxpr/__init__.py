"""Translate traced JAX functions (jaxprs) to ONNX; `frontends/jax` and other frontends that trace with JAX use it."""
