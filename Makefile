# Everything a fresh machine needs is Python 3.11 or newer, make, a package index and Maven. No root, no Java.

UV_SERIES  := 0.13
UV_VERSION := 0.13.7
PYTHON     ?= python3
DEMO       ?= 1
BIN        := .venv/bin
# More than the two cores of a small machine: tests often wait for other processes, the long ones most.
WORKERS    ?= 3
LONG_WORKERS ?= 4
# In CI a test that ran out of time on a busy machine gets a second try; a wrong result never does.
RERUN      := -raR --reruns 1 --only-rerun Timeout --only-rerun 'wait_until\('
PYTEST     := $(BIN)/pytest $(if $(CI),$(RERUN)) -n

# The uv on the path if it is of the same series, else one of our own.
UV := $(if $(filter $(UV_SERIES).%,$(shell uv --version 2>/dev/null)),$(shell command -v uv),.tools/bin/uv)
ifeq ($(UV),.tools/bin/uv)
UV_STAMP := .tools/uv-$(UV_VERSION)
endif
STAMP := .venv/.synced
JARS  := .venv/.jars

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
.PHONY: help setup run test test-all test-long test-components soak lint format lock docs bench bench-quick clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  \033[1mmake %-12s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(JARS) ## Make .venv from the lock file and fetch Spark's jars (the others do this by themselves)

run: $(JARS) ## Start frazil with gentle demo traffic (DEMO=0: without)
	$(BIN)/frazil up $(if $(filter 0,$(DEMO)),--no-demo,--demo)

test: $(JARS) ## Unit and quick integration tests
	$(PYTEST) $(WORKERS) -m 'not slow and not go'

test-all: test test-components test-long ## Every test: also the long sweeps and what needs Go, a browser or Debian packages

test-long: $(JARS) ## The long sweeps and what needs Go alone
	$(PYTEST) $(LONG_WORKERS) -m '(slow or go) and not soak'

soak: $(JARS) ## Hours: every crash point of every sweep, and processes killed under load
	FRAZIL_SWEEP_ALL=1 $(PYTEST) $(LONG_WORKERS) -m 'slow or go'

test-components: $(JARS) ## Fetch and build the programs that tests use (once; about ten minutes)
	$(BIN)/python -m tests.support.spark.java_archives
	$(BIN)/python -m tests.components.kafka
	$(BIN)/python -m tests.components.iceberg_rest
	$(BIN)/python -m tests.components.promtool
	$(BIN)/python -m tests.components.chromium
	$(BIN)/python -m tests.components.apps
	$(BIN)/python -m tests.components.golang

lint: $(STAMP) ## Style, types and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## Format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

lock: $(UV_STAMP) ## Bring requirements.lock, and the pins of the tests' applications, in line with what they are made from
	$(UV) pip compile pyproject.toml --group dev --universal --generate-hashes --no-annotate --no-header \
		--python-version 3.11 --quiet -o requirements.lock
	$(UV) pip compile tests/components/apps/requirements.in --universal --generate-hashes --no-annotate --no-header \
		--python-version 3.11 --quiet -o tests/components/apps/requirements.txt

docs: $(STAMP) ## Write the generated pages of docs/ again
	$(BIN)/python -m frazil.tables > docs/tables.md
	$(BIN)/frazil config > docs/frazil.example.yaml

bench: $(JARS) ## The speed table of the README
	$(BIN)/python -m bench

bench-quick: $(JARS) ## Its most important lines, in about four minutes
	$(BIN)/python -m bench --quick

clean: ## Remove what make and the tools made (never data)
	rm -rf .venv .tools .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache dist build
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

# pyproject.toml too: it declares the command and the version.
$(STAMP): requirements.lock pyproject.toml $(UV_STAMP)
	@test -x $(BIN)/python || $(UV) venv --quiet --python '>=3.11' .venv
	$(UV) pip sync --quiet --python .venv --require-hashes --compile-bytecode requirements.lock
	$(UV) pip install --quiet --python .venv --no-deps --no-build-isolation --editable .
	@touch $@

# Kept in the user's cache, so that starting Spark needs no network.
$(JARS): $(STAMP) src/frazil/pipeline/jars.py
	@$(BIN)/python -m frazil.pipeline.jars
	@touch $@

$(UV_STAMP):
	@$(PYTHON) -m venv .tools || { echo "make: $(PYTHON) cannot make virtual environments; install python3-venv, or uv $(UV_SERIES)" >&2; exit 1; }
	.tools/bin/python -m pip install --quiet --disable-pip-version-check 'uv==$(UV_VERSION)'
	@touch $@
