"""Decompose `ai.onnx.ml` into operators of `ai.onnx`: one function per operator, by family.

linear.py       LinearRegressor, LinearClassifier
preparation.py  Scaler, Normalizer, Imputer, Binarizer, OneHotEncoder, FeatureVectorizer, ArrayFeatureExtractor
svm.py          SVMRegressor, SVMClassifier; coupling.py: the probabilities of the latter
trees.py        TreeEnsemble, TreeEnsembleRegressor, TreeEnsembleClassifier; `onward.model.forest` reads them
lookup.py       LabelEncoder
values.py       what they share: weights, labels, post-transforms
support.py      the table of what each can do

Weights in attributes become tensors with the name `node/attribute`. `onward.model.ml_nodes` keeps the operator in the
file and puts it back, with the trained numbers, into the inference model. At disputed points the numbers are those of
ONNX Runtime. What has no formula here (text, maps, rare combinations) stays as it is, for a runtime's own kernel.
"""

from onward.upgrade.ml import linear as linear  # importing it registers its decompositions
from onward.upgrade.ml import lookup as lookup
from onward.upgrade.ml import preparation as preparation
from onward.upgrade.ml import svm as svm
from onward.upgrade.ml import trees as trees
