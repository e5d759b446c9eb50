"""Make `.keras` files of `onward.to_keras` loadable in every process that imports onward, without importing Keras.

Keras loads classes that are registered with it, and no others. Two small classes are registered as soon as the process
imports Keras; they import the real ones when a file asks for them.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

PACKAGE = "onward"
_CLASSES = {"OnnxModel": "onward.backends.keras.model", "OnnxOptimizer": "onward.backends.keras.optimizer"}


def register_with_keras() -> None:
    """Register the classes with Keras, now or when it is imported."""
    if hasattr(sys.modules.get("keras"), "saving"):
        _register()
    elif not any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenImported())


class _WhenImported:  # importlib.abc, whose class this would be, takes longer to import than onward does
    """Finds Keras as Python does; once it is loaded, and not only looked for, the classes are registered."""

    _searching = False

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> Any:
        if fullname != "keras" or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                load(module)
                _register()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _register() -> None:
    import keras

    for name, module in _CLASSES.items():
        if module in sys.modules:
            continue  # the real class has registered itself

        def from_config(config: Any, module: str = module, name: str = name) -> Any:
            return getattr(importlib.import_module(module), name).from_config(config)

        stand_in = type(name, (), {"from_config": staticmethod(from_config), "get_config": dict})
        keras.saving.register_keras_serializable(PACKAGE, name)(stand_in)
