"""Small quantized models as tools write them, stored as graphs of kilobytes: `python -m
tests.quantized` (see `__main__.py`)."""
