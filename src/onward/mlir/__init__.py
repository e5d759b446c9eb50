"""MLIR."""
