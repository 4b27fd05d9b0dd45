# make demo    install into .venv, optimize ResNet-50, compile its library, compare with the original, print the report
# make test    install into .venv, run the tests that need no GPU
# make test-zoo  every graph of tests/zoo and tests/zoo/exports (hours on 2 cores)
# make mutants   small faults in copies of the sources, which tests have to find (about 20 minutes on 2 cores)
# make false-alarms  verify right models in all precisions with three seeds; adds to tests/false_alarms.json
# make lint    ruff, clang-format, import-linter, mypy and the documentation as a site (pre-commit runs the same: .pre-commit-config.yaml)
# make dist    wheel and sdist of a release, checked, in dist/; a tag has to be the version's (tests/release.py)
# make bench   measure all of benchmarks/ at this commit on the local GPU, as far as results lack it; tables and plots
PYTHON ?= python3
BIN := .venv/bin
PACKAGES := apt-get install g++ make python3-venv

# kernels for Hopper, and for this machine's GPU where that is another one
LOCAL_ARCH := from onnxbolt.gpu import local_arch; arch = local_arch(); print(f"--arch {arch}" if arch not in (None, "sm_90a") else "")

.PHONY: demo test test-zoo false-alarms mutants lint lint-ruff lint-format lint-cxx lint-imports lint-types lint-docs bench dist
demo: .venv/.demo
	mkdir -p build
	$(BIN)/python -m models resnet50 build/resnet50.onnx --batch 1
	$(BIN)/onnxbolt optimize build/resnet50.onnx build/resnet50.bolt.onnx --arch sm_90a $$($(BIN)/python -c '$(LOCAL_ARCH)')

# one thread to each process: there are as many processes as cores; long files keep to one process, for their fixtures;
# bytecode is kept, since tests start hundreds of processes that import the package
test: .venv/.dev
	PYTHONDONTWRITEBYTECODE= OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

false-alarms: .venv/.dev
	$(BIN)/python -m tests.false_alarms

test-zoo: .venv/.dev
	$(BIN)/python -m pytest -m zoo

mutants: .venv/.dev
	$(BIN)/python -m tests.mutants

lint: lint-ruff lint-format lint-cxx lint-imports lint-types lint-docs

lint-ruff: .venv/.dev
	$(BIN)/ruff check .

lint-format: .venv/.dev
	$(BIN)/ruff format --check .

lint-cxx: .venv/.dev
	find custom_ops examples tests -path tests/golden -prune -o \( -name '*.h' -o -name '*.cc' -o -name '*.cu' \) \
	  -exec $(BIN)/clang-format --dry-run --Werror {} +

lint-imports: .venv/.dev
	$(BIN)/lint-imports

lint-types: .venv/.dev
	$(BIN)/mypy

# the documentation as a site, in build/site; a link or an anchor that leads nowhere is an error
lint-docs: .venv/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dist: .venv/.dev
	$(BIN)/python -m tests.release

bench: .venv/.gpu
	$(BIN)/python -m benchmarks.all

# The messages of Triton's client parse a configuration in tests/examples. Its own dependencies are left out: they would hold
# protobuf and ml_dtypes back, and these messages need neither.
TRITON := tritonclient==2.73.0

# One stamp per set of extras; each is renewed when pyproject.toml changes. ONNX Runtime exists as a CPU and as a GPU package,
# which overwrite each other's files: `make bench` belongs on the machine with the GPU, in a checkout of its own. Python
# compiles a module when it is first imported: compiling all of them took 24 s, and most are never imported.
.venv/.demo: EXTRAS := cpu,cuda
.venv/.dev: EXTRAS := cpu,cuda,dev
.venv/.gpu: EXTRAS := gpu,cuda,bench
.venv/.demo .venv/.dev .venv/.gpu: pyproject.toml
	@command -v g++ >/dev/null || { echo "error: g++ is missing; on Debian and Ubuntu: $(PACKAGES)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is missing or older than 3.11; choose another one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "error: $(PYTHON) has no venv; on Debian and Ubuntu: $(PACKAGES)" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --editable ".[$(EXTRAS)]"
	$(if $(findstring dev,$(EXTRAS)),$(BIN)/python -m pip install --quiet --no-deps $(TRITON))
	@touch $@
