"""Trained models of others, before and after `optimize`: `python -m tests.trained`."""
