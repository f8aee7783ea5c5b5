# make demo and make test do all their own set-up; everything else is for those who work on manyarms.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SYSTEM_LIBRARIES := libosmesa6 libegl1 libgl1-mesa-dri xvfb
JOBS ?= 4

.PHONY: demo test test-fast lint format types benchmark interpreters clean help

help:
	@echo "make demo        see what manyarms does"
	@echo "make test        everything CI checks: format, lint, types, import order, all tests"
	@echo "make test-fast   the tests for the inner loop"
	@echo "make format      format and fix what can be fixed"
	@echo "make benchmark   measure against peers (benchmarks/README.md)"

demo: $(READY)
	$(BIN)/manyarms demo

test: $(READY) lint types interpreters
	$(BIN)/pytest -n $(JOBS)

test-fast: $(READY)
	$(BIN)/pytest -n $(JOBS) -m "not slow" -q

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/shellcheck scripts/*.sh requirements/*.sh examples/embodiment/*.sh

types: $(READY)
	$(BIN)/pyright

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

benchmark: $(READY)
	$(BIN)/python benchmarks/vector.py

# Environments for workers in other Pythons, made before the tests start so that no two of them make the same one.
interpreters: $(READY)
	$(BIN)/python tests/interpreters.py

$(READY): pyproject.toml requirements/dev.txt requirements/bare.txt scripts/setup.sh
	scripts/setup.sh $(VENV) $(SYSTEM_LIBRARIES)
	touch $(READY)

clean:
	rm -rf $(VENV) .venvs build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
