"""What nodes of a graph are compared with: the forms of patterns (types.py), and the patterns of
epilogue steps, made of their entries (epilogue.py).

Ops hold the patterns of what they begin with (onnxbolt/ops/), and match/patterns.py has all of them
by operator, so that at most a few look at a node.
"""
