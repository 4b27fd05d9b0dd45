"""Numbers and words in fused nodes and libraries that both Python and C++ use.

The C++ sources get them from here (codegen/declarations.py), and the domains from domains.py.
"""

from __future__ import annotations

NODE_FORMAT = 1  # attribute `format` of a fused node
# session configuration entries that a library reads
ENABLE, DEVICE = "onnxbolt.enable", "onnxbolt.device"
# the entry-point group of extensions, and the metadata entry by which a model names those it needs
EXTENSIONS = "onnxbolt.extensions"
