"""Recomputation of values of the forward pass for the use of the backward pass (docs/training.md)."""
