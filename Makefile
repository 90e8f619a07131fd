# Everything runs from a virtual environment that `make install` builds from nothing.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.witbench-installed
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help install lint types test test-all bench wheel clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## build .venv and install witbench into it, editable

# Build backends go into the environment and build without isolation, so once installed nothing is fetched again:
# ours, and setuptools for hydra's ANTLR runtime, which has no wheel.
$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt "scikit-build-core>=1.0,<2" "setuptools>=70.1,<90"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable ".[dev]"
	@touch $@

lint: $(STAMP) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Tests run side by side: one thread each, and where a test has two, they do not spin for one another.
test test-all: export OMP_NUM_THREADS ?= 1
test test-all: export OMP_WAIT_POLICY ?= passive

test: lint ## lint, types and every quick test
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not slow and not gpu and not slurm and not browser"

test-all: lint ## the slow tests too
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not gpu and not slurm and not browser"

bench: $(STAMP) ## train, attack, verify: the table, a certificate and a plot
	$(BIN)/witbench bench

wheel: $(STAMP) ## dist/witbench-*.whl
	$(BIN)/python -m build --wheel --no-isolation

clean: ## remove what was built, not what was run
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache
