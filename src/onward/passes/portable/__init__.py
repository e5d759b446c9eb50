"""The portable profile (docs/portable.md).

`deny_list.json` names what some runtime gets wrong, with evidence; `deny_list.py` finds it in a graph, and
`rewrites.py` writes it with other operators.
"""
