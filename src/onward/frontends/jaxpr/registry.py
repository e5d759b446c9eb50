"""The table of rules: one function for each primitive of JAX, and the error that a rule raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}


class UnsupportedError(Exception):
    """A rule cannot express this use of its primitive; the message completes "`name` cannot be captured: …"."""


def primitive(*names: str) -> Callable[[Rule], Rule]:
    """Register the decorated function as the rule of the primitives called `names`.

    It gets the frame, in which it makes nodes, the equation, and one value for each input; it returns a value, or a
    list with one for each output. The translator sets their types and shapes.
    """

    def register(rule: Rule) -> Rule:
        for name in names:
            assert name not in RULES, f"two rules for {name}"
            RULES[name] = rule
        return rule

    return register
