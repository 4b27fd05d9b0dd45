"""Measured times as plain data: keys, records, and the timings that a plan is made with.

Nothing here runs a kernel or reads a file. The planner asks for timings and the tuner makes them,
so both import this package and it imports neither.
"""
