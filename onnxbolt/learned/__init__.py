"""A cost model that was learned from measurements: what it is told of a kernel, its trees, and its
file.

Predicting needs numpy alone. `tune/training.py` makes such models, `plan/cost.py` predicts with
them.
"""
