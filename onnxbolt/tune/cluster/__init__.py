"""Tuning on the GPUs of a cluster of dask.distributed workers (docs/decisions/cluster.md).

`connecting.py` starts or finds the cluster, `pool.py` gives each worker its jobs, `gpus.py` makes
jobs of measurements, and `tasks.py` is what runs on the workers.
"""
