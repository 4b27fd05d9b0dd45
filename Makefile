# make demo    install into .venv, optimize ResNet-50, compile its library, compare with the original, print the report
# make test    install into .venv, run the tests that need no GPU
# make test-zoo  every graph of tests/zoo (about an hour on 2 cores)
# make lint    ruff and mypy
# make bench   measure against ONNX Runtime on the local GPU
PYTHON ?= python3
BIN := .venv/bin
PACKAGES := apt-get install g++ make python3-venv

# The GPU of this machine, where kernels for it exist: "8.6" becomes --arch sm_86. sm_90 is in the demo anyway.
LOCAL_ARCH := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | sed -n 's/^\(7\)\.\(5\)$$\|^\(8\)\.\([069]\)$$/sm_\1\2\3\4/p')
DEMO_ARCHS := --arch sm_90a $(addprefix --arch ,$(LOCAL_ARCH))

.PHONY: demo test test-zoo lint bench
demo: .venv/.demo
	$(BIN)/python -m models resnet50 build/resnet50.onnx --batch 1
	$(BIN)/onnxbolt optimize build/resnet50.onnx build/resnet50.bolt.onnx $(DEMO_ARCHS)

test: .venv/.dev
	$(BIN)/python -m pytest -n auto

test-zoo: .venv/.dev
	$(BIN)/python -m pytest -m zoo

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: .venv/.gpu
	$(BIN)/python benchmarks/end_to_end.py

# One stamp per set of extras; each is renewed when pyproject.toml changes. ONNX Runtime exists as a CPU and as a GPU package,
# which overwrite each other's files: `make bench` belongs on the machine with the GPU, in a checkout of its own.
.venv/.demo: EXTRAS := cpu,cuda
.venv/.dev: EXTRAS := cpu,cuda,dev
.venv/.gpu: EXTRAS := gpu,cuda
.venv/.demo .venv/.dev .venv/.gpu: pyproject.toml
	@command -v g++ >/dev/null || { echo "error: g++ is missing; on Debian and Ubuntu: $(PACKAGES)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is missing or older than 3.11; choose another one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "error: $(PYTHON) has no venv; on Debian and Ubuntu: $(PACKAGES)" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable ".[$(EXTRAS)]"
	@touch $@
