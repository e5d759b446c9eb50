"""Passes: each one changes a graph in one way and states what it needs."""
