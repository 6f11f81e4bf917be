# `make demo` and `make test` start from nothing: they need a Python of 3.11 or later and create everything else.
#
#   make demo                  train a private classifier on the images that come with the package, and write its report
#   make test                  lint, types, import contracts, tests and doctests
#   make test PYTHON=python3.12     the same with another interpreter (run `make clean` first)
#   make bundle PYTHON=3.12    everything but torch, numpy and scipy in one folder, for a machine that cannot install

PYTHON ?= python3
# A bare version (3.12) names the machine a bundle is for; anything else is an interpreter on this machine.
VERSION := $(filter 3.%,$(PYTHON))
INTERPRETER := $(if $(VERSION),python3,$(PYTHON))

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Constraints always apply: no target installs a version of torch that was not tested.
INSTALL := $(PIP) install --quiet --constraint constraints.txt
WORKERS ?= 2
RUN ?= runs/demo
# One thread per worker: small matrices are slower, and results less repeatable, when threads share a core.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-slow lint types contracts unit format bundle clean

help:
	@sed -n 's/^#   //p' Makefile

$(VENV)/.stamp-venv:
	@$(INTERPRETER) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "privet needs Python 3.11 or later; choose one with: make PYTHON=/path/to/python"; exit 1; }
	$(INTERPRETER) -m venv $(VENV)
	@touch $@

$(VENV)/.stamp-run: $(VENV)/.stamp-venv pyproject.toml constraints.txt
	$(INSTALL) --editable '.[report]'
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-run
	$(INSTALL) --editable '.[report,dev]'
	@touch $@

demo: $(VENV)/.stamp-run
	OMP_NUM_THREADS=1 $(BIN)/privet train demo -o $(RUN)
	$(BIN)/privet report $(RUN)

test: lint types contracts unit

lint: $(VENV)/.stamp-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.stamp-dev
	$(BIN)/mypy

contracts: $(VENV)/.stamp-dev
	$(BIN)/lint-imports --no-logo

unit: $(VENV)/.stamp-dev
	$(PYTEST) -n $(WORKERS) -m "not slow"

test-slow: $(VENV)/.stamp-dev
	$(PYTEST) -n $(WORKERS) -m slow

format: $(VENV)/.stamp-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bundle: $(VENV)/.stamp-venv
	$(BIN)/python scripts/bundle.py --python-version $(or $(VERSION),3.12) $(addprefix --also ,$(ALSO))

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
