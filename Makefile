# make demo and make test do all their own set-up; everything else is for those who work on manyarms.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUNNABLE := $(VENV)/.runnable
PINNED := pyproject.toml requirements/dev.txt scripts/setup.sh
RENDERING := libosmesa6 libegl1 libgl1-mesa-dri
# One more than there are CPUs, for tests that wait.
JOBS ?= $(shell cpus=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$((cpus < 8 ? cpus + 1 : 8)))
# Where nothing may be compiled once and for all, each of a thousand processes compiles all it imports.
export PYTHONDONTWRITEBYTECODE =
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs

.PHONY: demo test test-soak test-fast test-mutants lint format types docs docs-check docs-serve benchmark interpreters clean help

help:
	@echo "make demo         see what manyarms does"
	@echo "make test         everything CI checks: format, lint, types, import order, documentation, all tests"
	@echo "make test-fast    the tests for the inner loop"
	@echo "make test-soak    what repeats one thing for long"
	@echo "make test-mutants whether the tests notice a line that is broken (ONLY=vector: of one package)"
	@echo "make format       format and fix what can be fixed"
	@echo "make docs         build the documentation into site/ (docs-serve: at http://127.0.0.1:8000)"
	@echo "make benchmark    measure against peers (benchmarks/README.md)"

demo: $(RUNNABLE)
	$(BIN)/manyarms demo

# Side by side, the longest first.
test: $(READY)
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target interpreters lint types docs-check
	$(BIN)/pytest -n $(JOBS) --dist loadgroup

# More of the same, which CI tries too: two hundred faults, a million steps, copies where shards were tried.
test-soak: $(READY)
	$(BIN)/pytest -n $(JOBS) --dist loadgroup -m soak

test-fast: $(READY)
	$(BIN)/pytest -n $(JOBS) --dist loadgroup -m "not slow and not soak" -q

# Takes an hour or two, and goes on where it was stopped; docs/testing.md says what it is for.
test-mutants: $(READY)
	$(BIN)/python scripts/mutants.py $(if $(ONLY),--only $(ONLY))

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

# The reference is written from the code, then the site is built strictly: what leads nowhere is an error.
# Not with --quiet: MkDocs counts only the warnings that it prints.
docs: $(READY)
	$(BIN)/python scripts/reference.py
	$(MKDOCS) build --strict

docs-check: $(READY)
	$(BIN)/python scripts/reference.py --check
	$(MKDOCS) build --strict

docs-serve: $(READY)
	$(BIN)/python scripts/reference.py
	$(MKDOCS) serve

benchmark: $(READY)
	$(BIN)/python benchmarks/vector.py

# Environments for workers in other Pythons, made before the tests start so that no two of them make the same one.
interpreters: $(READY)
	$(BIN)/python tests/interpreters.py

$(READY): $(PINNED) requirements/bare.txt
	scripts/setup.sh $(VENV) dev $(RENDERING) xvfb chromium zsh fish
	touch $(READY) $(RUNNABLE)

# What the demo needs, which is less.
$(RUNNABLE): $(PINNED)
	scripts/setup.sh $(VENV) demo $(RENDERING)
	touch $(RUNNABLE)

clean:
	rm -rf $(VENV) .venvs build dist site .pytest_cache .ruff_cache .hypothesis .import_linter_cache
