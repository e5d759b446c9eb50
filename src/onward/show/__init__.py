"""Views of a model for people: a summary, and an HTML page that draws its graphs."""

from __future__ import annotations

from onward.show.page import render_page
from onward.show.summary import summarize

__all__ = ["render_page", "summarize"]
