"""What a model is, for a person: a summary, its nodes as text, and a page that draws it."""

from __future__ import annotations

from onward.show.page import render_page
from onward.show.summary import summarize

__all__ = ["render_page", "summarize"]
