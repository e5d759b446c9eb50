"""`from_keras`: convert compiled Keras models to training models."""

from onward.frontends.keras.convert import from_keras

__all__ = ["from_keras"]
