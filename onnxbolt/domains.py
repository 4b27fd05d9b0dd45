"""The names of operator domains."""

FUSED = "com.onnxbolt"  # fused nodes, as models and the library have them
INTERNAL = "onnxbolt.internal"  # recognized nodes, between canonicalization and export
CONTRIB = "com.microsoft"  # ONNX Runtime's own operators
