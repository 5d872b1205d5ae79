# Every target sets up what it needs: a virtual environment in .venv, installed from pyproject.toml and constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
ARGS ?=

.PHONY: train test test-all check setup docs clean

train: .venv/.base  ## train with the defaults; ARGS="scoring=grpo seed=3" passes overrides
	$(BIN)/python train.py $(ARGS)

test: .venv/.dev check  ## checks and the test suite
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow" $(ARGS)

test-all: .venv/.dev check  ## everything, the long forms included
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

check: .venv/.dev  ## format, lint, types, import layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

docs: .venv/.base  ## regenerate docs/config.md and docs/metrics.md
	$(BIN)/python -m maxent_grpo config-docs
	$(BIN)/python -m maxent_grpo metrics-docs

setup: .venv/.base  ## only install

.venv/.python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; try: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	touch $@

.venv/.base: .venv/.python pyproject.toml constraints.txt
	$(BIN)/python -m pip install -c constraints.txt -e .
	touch $@

.venv/.dev: .venv/.base
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	touch $@

clean:  ## remove the environment and caches; outputs/ stays
	rm -rf .venv .pytest_cache .ruff_cache .import_linter_cache *.egg-info
