# `make demo` and `make test` start from nothing: they need a Python of 3.11 or later and create everything else.
#
#   make demo                  train a private classifier on the images that come with the package, and write its report
#   make check                 lint, types, import contracts and the fast tests: under three minutes, before every commit
#   make test                  all of that, all tests and doctests, the pages, a federation of real processes, and trainers of
#                              other libraries, and tables in their formats
#   make test PYTHON=python3.12     the same with another interpreter (run `make clean` first)
#   make test-browser          open reports in a headless Chromium, if one is installed; says what is missing
#   make docs                  build the pages of docs/ into build/docs; warnings are errors
#   make trust                 run the acceptance tests of trust and write docs/trust.md (make trust-slow: all of them)
#   make mutants               break the library on purpose, in many small ways, and see that tests notice each of them
#   make dist                  build the wheel and the source archive into dist/
#   make bundle PYTHON=3.12    everything but torch, numpy and scipy in one folder, for a machine that cannot install

PYTHON ?= python3
# A bare version (3.12) names the machine a bundle is for; anything else is an interpreter on this machine.
VERSION := $(filter 3.%,$(PYTHON))
INTERPRETER := $(if $(VERSION),python3,$(PYTHON))

VENV := .venv
FLOWER_VENV := .venv-flower
INTEGRATIONS_VENV := .venv-integrations
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Constraints always apply: no target installs a version of torch that was not tested.
CONSTRAINTS ?= constraints.txt
INSTALL := $(PIP) install --quiet --constraint $(CONSTRAINTS)
WORKERS ?= 2
RUN ?= runs/demo
# One thread per worker: small matrices are slower, and results less repeatable, when threads share a core.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo check quick test test-slow test-browser lint types contracts unit docs federated integrations trust trust-slow mutants format dist bundle clean

help:
	@sed -n 's/^#   //p' Makefile

$(VENV)/.stamp-venv:
	@$(INTERPRETER) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "privet needs Python 3.11 or later; choose one with: make PYTHON=/path/to/python"; exit 1; }
	$(INTERPRETER) -m venv $(VENV)
	@touch $@

$(VENV)/.stamp-run: $(VENV)/.stamp-venv pyproject.toml $(CONSTRAINTS)
	$(INSTALL) --editable '.[report]'
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-run research/pyproject.toml
	$(INSTALL) --editable '.[report,dev]' --editable research
	@touch $@

$(VENV)/.stamp-docs: $(VENV)/.stamp-run
	$(INSTALL) --editable '.[report,docs]'
	@touch $@

demo: $(VENV)/.stamp-run
	OMP_NUM_THREADS=1 $(BIN)/privet train demo -o $(RUN)
	$(BIN)/privet report $(RUN)

# Flower wants older versions of rich and packaging than the rest is tested with, so it lives in an environment apart.
$(FLOWER_VENV)/.stamp: $(VENV)/.stamp-venv pyproject.toml constraints-flower.txt
	$(INTERPRETER) -m venv $(FLOWER_VENV)
	$(FLOWER_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints-flower.txt \
		--editable '.[report,flower]' hypothesis pytest
	@touch $@

# Trainers of other libraries and readers of tables: many packages that no other test may lean on, so they live in an environment apart.
$(INTEGRATIONS_VENV)/.stamp: $(VENV)/.stamp-venv pyproject.toml constraints-integrations.txt
	$(INTERPRETER) -m venv $(INTEGRATIONS_VENV)
	$(INTEGRATIONS_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints-integrations.txt \
		--editable '.[report,transformers,peft,trl,lightning,sklearn,trackers,notebook,tables,sql]' hypothesis pytest pytest-xdist
	@touch $@

check: lint types contracts quick

# The federation waits for its own processes most of the time, so pages and trainers are tried beside it.
test: lint types contracts unit $(VENV)/.stamp-docs $(FLOWER_VENV)/.stamp $(INTEGRATIONS_VENV)/.stamp
	$(MAKE) --jobs 3 --output-sync=target docs federated integrations

lint: $(VENV)/.stamp-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.stamp-dev
	$(BIN)/mypy

contracts: $(VENV)/.stamp-dev
	$(BIN)/lint-imports --no-logo

unit: $(VENV)/.stamp-dev
	$(PYTEST) -n $(WORKERS) -m "not slow"

# Tests that take seconds and hold the laws on which a guarantee rests; a few that take long come with `make test` only.
LATER := contract/test_engines.py accounting/test_mechanisms.py accounting/test_random_plans.py \
	accounting/test_ledger_damage.py training/test_classifier.py training/test_loading.py training/test_several_processes.py \
	training/distributed
QUICK := $(addprefix tests/,contract mechanism accounting gradients isolation training) \
	$(addprefix tests/test_,$(addsuffix .py,checks names plan platforms repository)) \
	$(LATER:%=--ignore tests/%)

quick: $(VENV)/.stamp-dev
	$(PYTEST) -n $(WORKERS) -m "not slow" $(QUICK)

docs: $(VENV)/.stamp-docs
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet --fresh-env \
		--doctree-dir build/doctrees docs build/docs
	@echo "docs: build/docs/index.html"

federated: $(FLOWER_VENV)/.stamp
	OMP_NUM_THREADS=1 $(FLOWER_VENV)/bin/python -m pytest -m "not slow" tests/federated/test_network.py

integrations: $(INTEGRATIONS_VENV)/.stamp
	OMP_NUM_THREADS=1 $(INTEGRATIONS_VENV)/bin/python -m pytest -n $(WORKERS) -m "not slow" tests/integrations \
		tests/training/tracking \
		tests/datasets/test_typed_tables.py tests/datasets/test_sql_tables.py tests/cli/test_sql_table.py \
		"tests/test_docs.py::test_the_code_of_a_page_runs_in_order[transformers]"

test-slow: $(VENV)/.stamp-dev
	$(PYTEST) -n $(WORKERS) -m slow

# The tests of pages also run under `make test` where Chromium is there; this target refuses to skip them in silence.
test-browser: $(VENV)/.stamp-dev
	@$(BIN)/python -m tests.browser.missing
	$(PYTEST) tests/browser

mutants: $(VENV)/.stamp-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutants --record $(ONLY)

trust: $(VENV)/.stamp-dev
	$(BIN)/python scripts/trust_table.py --workers $(WORKERS)

trust-slow: $(VENV)/.stamp-dev
	$(BIN)/python scripts/trust_table.py --slow --workers $(WORKERS)

format: $(VENV)/.stamp-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

dist: $(VENV)/.stamp-dev
	$(BIN)/python -m hatchling build --directory dist

bundle: $(VENV)/.stamp-venv
	$(BIN)/python scripts/bundle.py --python-version $(or $(VERSION),3.12) $(addprefix --also ,$(ALSO))

clean:
	rm -rf $(VENV) $(FLOWER_VENV) $(INTEGRATIONS_VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage
	find src tests scripts research -name __pycache__ -type d -prune -exec rm -rf {} +
