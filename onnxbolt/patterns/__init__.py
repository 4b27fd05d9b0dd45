"""One pattern per file: an op that starts a candidate, or one that adds a step to its epilogue.

A module holds `ANCHORS`, a tuple of `AnchorPattern`, or `STEPS`, a tuple of `StepPattern`
(types.py), or both. `anchors.py` and `steps.py` list the modules. Patterns name the ONNX ops that
they begin at, so at most one anchor pattern and a few step patterns look at a node.
"""
