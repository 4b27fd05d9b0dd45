"""Measured times as plain data: keys, records, and the timings that a plan is made with.

Nothing here runs a kernel or reads a file. The tuner makes timings and the planner reads them; both
import this package, and it imports neither.
"""
