# hiddenfeed: `make help` lists what there is. Packages go into .venv (about 2 GB) and nowhere else;
# the demo keeps its model in ~/.cache/hiddenfeed and its servers' data in ./demo.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Where torch comes from. Empty is the package index; on Linux that is the CUDA build (several GB).
# For a small CPU build: make demo TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
TORCH_INDEX_URL ?=
# Parallel test processes
TEST_WORKERS ?= 2
COMPOSE ?= docker compose

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  \033[1m%-15s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: venv
venv: $(VENV)/.installed ## Make .venv with everything in it

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hiddenfeed needs Python 3.11 or newer; try make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'installing into $(VENV): a few minutes, about 2 GB ...'
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

.PHONY: demo
demo: venv ## The whole pipeline on this machine, with a small real model; ends with the proof
	$(BIN)/python -m standalone demo

.PHONY: serve
serve: venv ## Look at what the demo left: its S3 server and the monitor's page
	$(BIN)/python -m standalone serve --home demo

.PHONY: test
test: venv ## All tests, with real Redis and S3 servers started on free ports
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: chaos
chaos: venv ## Random faults against a running pipeline for half an hour; ends with a table
	$(BIN)/python -m tests.faults.chaos --minutes 30

.PHONY: lint
lint: venv ## Format check, lint, strict types, import contracts, Dockerfiles, generated docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint deploy/docker/*.Dockerfile
	$(BIN)/python -m common.settings.document --check

.PHONY: format
format: venv ## Format and fix what can be fixed; write the generated docs
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python -m common.settings.document

.PHONY: bench
bench: venv ## The benchmarks, quick form
	$(BIN)/python -m benchmarks extraction --quick
	$(BIN)/python -m benchmarks device_loop --quick
	$(BIN)/python -m benchmarks control_plane --quick
	$(BIN)/python -m benchmarks recovery --quick
	$(BIN)/python -m benchmarks prepare --quick
	$(BIN)/python -m benchmarks makespan --quick
	$(BIN)/python -m benchmarks eta --quick
	$(BIN)/python -m benchmarks monitor --quick
	$(BIN)/python -m benchmarks reading --quick

.PHONY: gpu-check
gpu-check: venv ## On a machine with a CUDA device: tests on it and its speed, in a few minutes; ends with one JSON object
	$(BIN)/python -m benchmarks gpu_check --json

.PHONY: compose-smoke
compose-smoke: ## Build, up, scale, submit, verify, down: needs a Docker engine
	COMPOSE='$(COMPOSE)' deploy/compose/smoke.sh

.PHONY: clean
clean: ## Remove what the demo and the tools left here; .venv stays
	rm -rf demo spool dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
