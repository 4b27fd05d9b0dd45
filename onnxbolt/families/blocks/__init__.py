"""What several kernel families share: formulas of shared memory, tiles and times."""
