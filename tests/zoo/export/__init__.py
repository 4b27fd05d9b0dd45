"""Models of PyTorch, timm and transformers as torch.onnx.export writes them, stored as graphs of
kilobytes: `python -m tests.zoo.export` (see `__main__.py`)."""
