"""Operators by family; the registry imports every module here on first use."""
