"""Patterns, which recognize nodes of a graph: their types (types.py), and those of epilogue steps,
made from the steps' entries (epilogue.py).

Ops have the patterns of the nodes that they begin with (onnxbolt/ops/). match/patterns.py lists all
patterns by operator, so that few are compared with each node.
"""
