"""Passes: each one makes one change to a graph and states its requirements."""
