"""The operators of `com.microsoft` as plain ones; they live in `onward.model.microsoft`, where autodiff can reach."""

from __future__ import annotations

from onward.model.microsoft import decompose_microsoft as decompose_microsoft
