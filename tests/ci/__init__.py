"""Tests of `onnxbolt ci` and of its examples."""
