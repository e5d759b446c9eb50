"""Operators that plain runtimes do not have, written as operators that they do: one file per family."""
