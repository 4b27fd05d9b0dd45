"""Numbers and words in fused nodes and libraries that both Python and C++ use.

The C++ sources get them from here (codegen/declarations.py), and the domains from domains.py.
"""

from __future__ import annotations

NODE_FORMAT = 1  # attribute `format` of a fused node
# session configuration entries that a library reads
ENABLE, DEVICE = "onnxbolt.enable", "onnxbolt.device"
# the entry-point group of extensions, and the metadata entry by which a model names those it needs
EXTENSIONS = "onnxbolt.extensions"
# metadata entries for `runtime.cuda_provider`: the sizes of the inputs of the convolutions that are
# left to ONNX Runtime, and of the graph's inputs
CONVOLUTIONS, INPUTS = "onnxbolt.convolutions", "onnxbolt.inputs"
NONE, FIXED, OPEN = "none", "fixed", "open"  # there is none; all are numbers; some vary
# the metadata entry for `runtime.cuda_graph_obstacle`, and its values; a reason follows IMPOSSIBLE
CUDA_GRAPH, POSSIBLE, IMPOSSIBLE = "onnxbolt.cuda_graph", "possible", "impossible: "
