"""Tuning: measured times take the place of predicted ones, and are remembered.

`records.py` names what is measured, `database.py` remembers it, `profiler.py` measures kernels in a
process of their own, `tuner.py` spends a budget on the tasks where it pays, `baseline.py` measures
what ONNX Runtime takes, `timings.py` answers the planner, `lockfile.py` makes the choices
reviewable and reproducible.
"""
