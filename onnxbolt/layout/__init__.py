"""Layout: the form in which each tensor is stored (onnxbolt/forms.py).

`assign.py` decides the forms in one forward pass over the graph; `rules/` says how nodes that are
not fused read and write other forms than ONNX's; `convert.py` writes the layout conversions between
a tensor's form and the one that a reader needs.
"""
