"""Tuning: measured times take the place of predicted ones, and are remembered.

`database.py` remembers measurements, `profiler.py` measures kernels in a process of their own,
`tuner.py` spends a budget on the tasks where it pays, `baseline.py` compares with ONNX Runtime, and
`lockfile.py` makes the choices reviewable and reproducible. Measurements as plain data are in
`onnxbolt/measurements/`.
"""
