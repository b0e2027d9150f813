# Everything that a person or a CI runner does with this checkout. `make` alone lists it.
# The two that matter on a fresh machine: `make demo` and `make test`. Both set up .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST_ARGS ?=
BENCH_ARGS ?=
CHAOS_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test lint types imports chaos bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z.]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: $(READY) ## 1,200 requests, 264 photographs on this machine, every answer checked
	@$(BIN)/python examples/demo.py

test: $(READY) ## all tests but the long tier (PYTEST_ARGS="-k word" narrows it)
	$(BIN)/python -m pytest -q -m "not chaos" $(PYTEST_ARGS)

lint: $(READY) ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## mypy, strict
	$(BIN)/mypy

imports: $(READY) ## which package may import which
	$(BIN)/lint-imports

chaos: $(READY) ## the long tier, 40 minutes (CHAOS_ARGS="--profile short" kills processes for a minute)
	@$(BIN)/python -m tests.chaos $(CHAOS_ARGS)

bench: $(READY) ## CPU a request beside other ways (BENCH_ARGS="--quick" for a first look)
	$(BIN)/python -m bench $(BENCH_ARGS)

clean: ## remove .venv and everything that was generated
	rm -rf $(VENV) dist build demo-out bench/out .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is newer than what decides the contents of .venv, so nothing is installed twice.
$(READY): pyproject.toml ops/constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
	  echo "No '$(PYTHON)' on PATH. Install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Gristmill needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Name one: make PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments. On Debian or Ubuntu: apt install python3-venv" >&2; exit 2; }
	@echo "Setting up $(VENV) (once, about a minute)..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c ops/constraints.txt -e '.[dev]'
	@touch $@
