"""Numbers and words that fused nodes and libraries hold, which Python and C++ both read.

The C++ sources have them from here (codegen/declarations.py), and the domains from domains.py.
"""

from __future__ import annotations

NODE_FORMAT = 1  # attribute `format` of a fused node
# session configuration entries that a library reads
ENABLE, DEVICE = "onnxbolt.enable", "onnxbolt.device"
