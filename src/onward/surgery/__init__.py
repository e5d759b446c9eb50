"""Surgery on networks: a new head for other classes, a cut at any value, another graph attached to one.

>>> from onward import samples, surgery
>>> model = surgery.replace_head(samples.perceptron(), classes=["cat", "dog", "cow"])
>>> model.graph.initializers["W2"].shape
Shape([4, 3])
>>> [layer.weights for layer in surgery.layers(model)]
[('W2', 'b2'), ('W1', 'b1')]
"""

from __future__ import annotations

from onward.surgery.class_list import BLANK
from onward.surgery.replace import replace_head
from onward.surgery.selection import Layer, layers
from onward.surgery.splice import attach, cut

__all__ = ["BLANK", "Layer", "attach", "cut", "layers", "replace_head"]
