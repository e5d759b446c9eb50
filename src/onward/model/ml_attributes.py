"""Attributes of `ai.onnx.ml` that contradict each other: a runtime would refuse them, or read beyond their ends."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import numpy as np

from onward.model.forest import TREES, Attributes, Problem, forest_problems, whole

_POST = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")


def attribute_problems(op_type: str, attributes: Attributes, width: int | None = None) -> Iterator[Problem]:
    """Yield what is wrong with the attributes of one operator: the message, what was found, what is needed.

    `width` is the number of columns of the input, where it is known.
    """
    yield from _choice(attributes, "post_transform", _POST)
    if op_type in TREES:
        yield from _choice(attributes, "aggregate_function", ("AVERAGE", "SUM", "MIN", "MAX"))
        yield from forest_problems(op_type, attributes)
        features = whole(attributes, "nodes_featureids")
        if width is not None and features.max(initial=0) >= width:
            yield "`nodes_featureids` are beyond the columns of the input", str(features.max()), f"0 to {width - 1}"
    elif op_type in _CHECKS:
        yield from _CHECKS[op_type](attributes)


def _choice(attributes: Attributes, name: str, known: tuple[str, ...]) -> Iterator[Problem]:
    value = attributes.get(name)
    if isinstance(value, str) and value not in known:
        yield f"unknown `{name}`", value, f"one of: {', '.join(known)}"


def _size(attributes: Attributes, name: str) -> int:
    value = attributes.get(name)
    return 0 if value is None else int(np.size(value))


def _linear_regressor(attributes: Attributes) -> Iterator[Problem]:
    targets = int(attributes.get("targets", 1))
    coefficients, intercepts = (_size(attributes, n) for n in ("coefficients", "intercepts"))
    if targets < 1:
        yield "`targets` is below 1", str(targets), "1 or more"
    elif not coefficients or coefficients % targets:
        yield "`coefficients` do not fit", f"{coefficients} for {targets} targets", "as many for each target"
    if intercepts and targets > 0 and intercepts != targets:
        yield "`intercepts` do not fit", str(intercepts), f"one for each target ({targets})"


def _linear_classifier(attributes: Attributes) -> Iterator[Problem]:
    classes = yield from _labels(attributes)
    coefficients, intercepts = (_size(attributes, n) for n in ("coefficients", "intercepts"))
    scores = intercepts or classes
    if not coefficients or (scores and coefficients % scores):
        yield "`coefficients` do not fit", f"{coefficients} for {scores} scores", "as many for each score"
    if classes and intercepts and intercepts != classes and (intercepts, classes) != (1, 2):
        yield "`intercepts` do not fit", str(intercepts), f"one for each class ({classes})"


def _labels(attributes: Attributes) -> Generator[Problem, None, int]:
    words, ints = (_size(attributes, f"classlabels_{n}") for n in ("strings", "ints"))
    if words and ints:
        yield "the classes have labels of text and of integers", "", "`classlabels_strings` or `classlabels_ints`"
    if not words and not ints:
        yield "the classes have no labels", "", "`classlabels_strings` or `classlabels_ints`"
    return words or ints


def _svm_regressor(attributes: Attributes) -> Iterator[Problem]:
    yield from _choice(attributes, "kernel_type", _KERNELS)
    supports, vectors, coefficients = int(attributes.get("n_supports", 0)), _size(attributes, "support_vectors"), _size(
        attributes, "coefficients")  # fmt: skip
    if not _size(attributes, "rho"):
        yield "`rho` is empty", "", "one number"
    if not coefficients:
        yield "`coefficients` are empty", "", "one for each support vector"
    if supports < 0:
        yield "`n_supports` is negative", str(supports), "0 or more"
    elif supports:
        if coefficients and coefficients != supports:
            yield "`coefficients` do not fit", str(coefficients), f"one for each support vector ({supports})"
        if not vectors or vectors % supports:
            yield "`support_vectors` do not fit", f"{vectors} numbers", f"as many for each of {supports} vectors"
        yield from _kernel(attributes)


def _kernel(attributes: Attributes) -> Iterator[Problem]:
    size = _size(attributes, "kernel_params")
    if attributes.get("kernel_type", "LINEAR") != "LINEAR" and size != 3:
        yield "`kernel_params` do not fit", str(size), "three: gamma, coef0, degree"


def _svm_classifier(attributes: Attributes) -> Iterator[Problem]:
    yield from _choice(attributes, "kernel_type", _KERNELS)
    classes = yield from _labels(attributes)
    counts, rho = whole(attributes, "vectors_per_class"), _size(attributes, "rho")
    vectors, coefficients = _size(attributes, "support_vectors"), _size(attributes, "coefficients")
    prob = [_size(attributes, n) for n in ("prob_a", "prob_b")]
    if prob[0] != prob[1]:
        yield "`prob_a` and `prob_b` differ in length", f"{prob[0]} and {prob[1]}", "as many in both"
    if not coefficients:
        yield "`coefficients` are empty", "", "one for each support vector"
    if (counts < 0).any():
        yield "`vectors_per_class` are negative", str(counts.tolist()[:5]), "0 or more"
        return
    total = int(counts.sum())
    if not total:
        if not rho:
            yield "`rho` is empty", "", "one number"
        return
    if len(counts) != classes:
        yield "`vectors_per_class` do not fit", str(len(counts)), f"one for each class ({classes})"
        return
    if not vectors or vectors % total:
        yield "`support_vectors` do not fit", f"{vectors} numbers", f"as many for each of {total} vectors"
    if coefficients and coefficients != (classes - 1) * total:
        yield "`coefficients` do not fit", str(coefficients), f"{classes - 1} for each support vector ({total})"
    pairs = classes * (classes - 1) // 2
    for name, size in (("rho", rho), ("prob_a", prob[0])):
        if size != pairs and (size or name == "rho"):
            yield f"`{name}` does not fit", str(size), f"one for each pair of classes ({pairs})"
    yield from _kernel(attributes)


def _scaler(attributes: Attributes) -> Iterator[Problem]:
    offset, scale = (_size(attributes, n) for n in ("offset", "scale"))
    if offset != scale and 1 not in (offset, scale):
        yield "`offset` and `scale` differ in length", f"{offset} and {scale}", "one for each feature in both"


def _normalizer(attributes: Attributes) -> Iterator[Problem]:
    yield from _choice(attributes, "norm", ("MAX", "L1", "L2"))


def _one_hot_encoder(attributes: Attributes) -> Iterator[Problem]:
    words, ints = (_size(attributes, f"cats_{n}") for n in ("strings", "int64s"))
    if bool(words) == bool(ints):
        found = "both" if words else "none"
        yield "the categories are not of one kind", found, "`cats_strings` or `cats_int64s`"


def _imputer(attributes: Attributes) -> Iterator[Problem]:
    floats, ints = (_size(attributes, f"imputed_value_{n}") for n in ("floats", "int64s"))
    if bool(floats) == bool(ints):
        found = "both" if floats else "none"
        yield "the imputed values are not of one kind", found, "`imputed_value_floats` or `imputed_value_int64s`"


def _label_encoder(attributes: Attributes) -> Iterator[Problem]:
    if _size(attributes, "classes_strings"):
        return  # version 1
    kinds = {
        kind: [n for n in (f"{kind}_{end}" for end in ("strings", "int64s", "floats", "tensor")) if n in attributes]
        for kind in ("keys", "values")
    }
    for kind, names in kinds.items():
        if len(names) != 1:
            found = ", ".join(names) or "none"
            yield f"there is not one list of {kind}", found, f"one of `{kind}_strings`, `{kind}_int64s`, …"
    if all(len(names) == 1 for names in kinds.values()):
        sizes = [_size(attributes, names[0]) for names in kinds.values()]
        if sizes[0] != sizes[1]:
            yield "keys and values differ in length", f"{sizes[0]} and {sizes[1]}", "one value for each key"


def _category_mapper(attributes: Attributes) -> Iterator[Problem]:
    words, ints = (_size(attributes, f"cats_{n}") for n in ("strings", "int64s"))
    if words != ints:
        yield "`cats_strings` and `cats_int64s` differ in length", f"{words} and {ints}", "one number for each word"


def _of_one_kind(words: str, ints: str) -> Callable[[Attributes], Iterator[Problem]]:
    def check(attributes: Attributes) -> Iterator[Problem]:
        given = [n for n in (words, ints) if _size(attributes, n)]
        if len(given) != 1:
            yield "the names are not of one kind", ", ".join(given) or "none", f"`{words}` or `{ints}`"

    return check


_CHECKS: dict[str, Callable[[Attributes], Iterator[Problem]]] = {
    "LinearRegressor": _linear_regressor,
    "LinearClassifier": _linear_classifier,
    "SVMRegressor": _svm_regressor,
    "SVMClassifier": _svm_classifier,
    "Scaler": _scaler,
    "Normalizer": _normalizer,
    "OneHotEncoder": _one_hot_encoder,
    "Imputer": _imputer,
    "LabelEncoder": _label_encoder,
    "CategoryMapper": _category_mapper,
    "DictVectorizer": _of_one_kind("string_vocabulary", "int64_vocabulary"),
    "ZipMap": _of_one_kind("classlabels_strings", "classlabels_int64s"),
}

__all__ = ["attribute_problems"]
