"""Training: the loop, data, metrics, callbacks, checkpoints."""

from __future__ import annotations

from onward.train.callbacks import (
    BestSoFar,
    Callback,
    EarlyStopping,
    FunctionCallback,
    LearningRateSchedule,
    ReduceOnPlateau,
)
from onward.train.checkpoint import CheckpointWarning
from onward.train.data import DataSource, Preparation
from onward.train.history import History
from onward.train.loggers import JsonLines, MLflow, WandB
from onward.train.metrics import METRICS, Metric
from onward.train.predictions import Predictions
from onward.train.profile import Profile
from onward.train.rate_finder import RateSearch
from onward.train.trainer import Trainer
from onward.train.watchers import JsonLog, LossPlot, Report, TensorBoard

__all__ = [
    "METRICS",
    "BestSoFar",
    "Callback",
    "CheckpointWarning",
    "DataSource",
    "EarlyStopping",
    "FunctionCallback",
    "History",
    "JsonLines",
    "JsonLog",
    "LearningRateSchedule",
    "LossPlot",
    "MLflow",
    "Metric",
    "Predictions",
    "Preparation",
    "Profile",
    "RateSearch",
    "ReduceOnPlateau",
    "Report",
    "TensorBoard",
    "Trainer",
    "WandB",
]
