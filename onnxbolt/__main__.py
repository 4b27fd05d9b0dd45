"""`python -m onnxbolt` is the command `onnxbolt`."""

import sys

from onnxbolt.cli import main

if __name__ == "__main__":
    sys.exit(main())
