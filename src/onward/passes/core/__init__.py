"""Lower plain graphs to the core operators (docs/core_operators.md).

`operators.py` has the set, one file per family the decompositions, `lowering.py` the pass.
"""
