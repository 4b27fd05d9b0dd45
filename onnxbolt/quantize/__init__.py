"""Makes quantized models of those of floats: QuantizeLinear and DequantizeLinear where kernels of
codes read and write, with scales from calibration data (docs/quantization.md)."""
