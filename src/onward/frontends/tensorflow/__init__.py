"""`from_tensorflow`: convert TensorFlow modules, functions and SavedModels to training models."""

from onward.frontends.tensorflow.convert import from_tensorflow

__all__ = ["from_tensorflow"]
