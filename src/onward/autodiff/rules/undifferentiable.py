"""Operators none of whose inputs has a gradient: text, images, and the classical models of ai.onnx.ml.

The operators of ai.onnx.ml hold their parameters in attributes. `onward.upgrade.ml` writes them as plain operators
first, so these conditions concern the rare forms that it leaves. Their messages name ai.onnx operators that compute the
same.
"""

from __future__ import annotations

from onward.autodiff.registry import NON_DIFFERENTIABLE, UNSUPPORTED, ZERO, declare

declare("ImageDecoder", opset=20, encoded_stream=NON_DIFFERENTIABLE)
declare("RegexFullMatch", opset=20, X=NON_DIFFERENTIABLE)
declare("StringConcat", opset=20, X=NON_DIFFERENTIABLE, Y=NON_DIFFERENTIABLE)
declare("StringNormalizer", opset=10, X=NON_DIFFERENTIABLE)
declare("StringSplit", opset=20, X=NON_DIFFERENTIABLE)
declare("TfIdfVectorizer", opset=9, X=NON_DIFFERENTIABLE)

_ML = "ai.onnx.ml"

# Maps, dictionaries, categories, look-ups: no argument to differentiate.
for _op_type in ("CastMap", "CategoryMapper", "DictVectorizer", "LabelEncoder", "OneHotEncoder"):
    declare(_op_type, domain=_ML, X=NON_DIFFERENTIABLE)

# Steps: flat almost everywhere. The leaves of a tree have a gradient once it is written as plain operators.
for _op_type in ("Binarizer", "TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"):
    declare(_op_type, domain=_ML, X=ZERO)


def _instead(operators: str) -> str:
    return f"this form keeps its parameters in attributes, which cannot be trained; write it as {operators}"


for _op_type, _operators in {
    "FeatureVectorizer": "Concat",
    "Imputer": "Where",
    "LinearClassifier": "Gemm and Softmax or Sigmoid",
    "LinearRegressor": "Gemm",
    "Normalizer": "LpNormalization, or Div by ReduceMax",
    "SVMClassifier": "MatMul, Exp or Tanh, and Gemm over the support vectors",
    "SVMRegressor": "MatMul, Exp or Tanh, and Gemm over the support vectors",
    "Scaler": "Sub and Mul",
    "ZipMap": "a tensor of probabilities: remove the ZipMap, or export without it (options={'zipmap': False})",
}.items():
    declare(_op_type, domain=_ML, X=UNSUPPORTED(_instead(_operators)))

declare("ArrayFeatureExtractor", domain=_ML, X=UNSUPPORTED(_instead("Gather")), Y=NON_DIFFERENTIABLE)
