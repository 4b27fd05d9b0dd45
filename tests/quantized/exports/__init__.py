"""Quantized models as other tools write them, and the scripts that had them written.

Each script needs its tool, which it names, in an environment of its own, and writes its graphs to
`graphs`, named MODEL.TOOL.FORM.onnx, and the releases to versions.json. nets.py comes first: it
writes the models of floats, which the others read. From the repository's root:

    ENVIRONMENT/bin/python -m tests.quantized.exports.modelopt
"""
