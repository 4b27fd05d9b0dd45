"""Formulas that several kernel families share: shared memory, tiles and times."""
