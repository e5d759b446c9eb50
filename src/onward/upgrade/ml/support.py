"""What each operator of `ai.onnx.ml` can do here; docs/coverage.md is generated from it."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Support:
    """One operator: which attributes are trained and written back, and what stays with a runtime's own kernel."""

    name: str
    trains: tuple[str, ...] = ()
    by_name: tuple[str, ...] = ()
    """Attributes that were measured, not learned: trained if `train` names them."""
    left: str = ""
    """What is not written as plain operators; all of it if there is no formula."""
    plain: bool = True


SUPPORT = (
    Support("ArrayFeatureExtractor", left="text"),
    Support("Binarizer"),
    Support("CastMap", left="a map is no tensor", plain=False),
    Support("CategoryMapper", left="text", plain=False),
    Support("DictVectorizer", left="a map is no tensor", plain=False),
    Support("FeatureVectorizer", left="parts of another width than `inputdimensions` says"),
    Support("Imputer", by_name=("imputed_value_floats",)),
    Support("LabelEncoder", by_name=("values_floats", "values_tensor"), left="text; tables of more than 1024 keys"),
    Support("LinearClassifier", trains=("coefficients", "intercepts"), left="PROBIT of one score"),
    Support("LinearRegressor", trains=("coefficients", "intercepts")),
    Support("Normalizer"),
    Support("OneHotEncoder", left="text; `zeros` 0"),
    Support("SVMClassifier", trains=("coefficients", "rho", "prob_a", "prob_b"), by_name=("support_vectors",),
            left="no support vectors; PROBIT of one score"),
    Support("SVMRegressor", trains=("coefficients", "rho"), by_name=("support_vectors",)),
    Support("Scaler", by_name=("offset", "scale")),
    Support("TreeEnsemble", trains=("leaf_weights",),
            left="SOFTMAX and LOGISTIC, whose numbers ONNX Runtime 1.31 exchanges; MIN and MAX of several targets"),
    Support("TreeEnsembleClassifier", trains=("class_weights", "base_values"),
            left="two scores for two classes with base values of both; one score that is the second"),
    Support("TreeEnsembleRegressor", trains=("target_weights", "base_values"),
            left="MIN and MAX of several targets, one a tree"),
    Support("ZipMap", left="a training step and `predict` read the tensor before it", plain=False),
)  # fmt: skip


def support_table() -> list[str]:
    """Return the operators as the lines of a Markdown table."""
    lines = [
        "| operator | as plain operators | trains | trains if named | left to the runtime |",
        "|---|---|---|---|---|",
    ]
    for s in SUPPORT:
        trains, by_name = (", ".join(f"`{a}`" for a in names) for names in (s.trains, s.by_name))
        lines.append(f"| {s.name} | {'yes' if s.plain else ''} | {trains} | {by_name} | {s.left} |")
    return lines
