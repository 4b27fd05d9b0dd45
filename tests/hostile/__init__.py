"""Models, lock files, databases and archives made to do harm, and what a run over each may do: say
no, in one line.

`python -m tests.hostile` tries all of them and counts.
"""
