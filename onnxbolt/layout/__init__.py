"""Layout: in which form each tensor is stored.

`form.py` names the forms, `assign.py` decides them in one forward pass over the graph, `rules/`
holds how ordinary ops carry a form through, `convert.py` writes the conversions where forms meet.
"""
