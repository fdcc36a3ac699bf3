# Verbs of the project. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
ARGS ?=

.DEFAULT_GOAL := help

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit("pyxbroker: Python 3.10 or newer is needed, this is " \
	    + sys.version.split()[0] + "; set PYTHON=...") if sys.version_info < (3, 10) else None'
	$(PYTHON) -m venv $(VENV)

# The editable install brings the libraries and .venv/bin/pyxbroker. It is done again only when
# what it depends on changes; the extension modules are built in place by `build` itself.
$(VENV)/.installed: pyproject.toml | $(PY)
	$(PY) -m pip install -q --disable-pip-version-check \
	    'setuptools>=77' 'Cython>=3.1' 'grpcio-tools>=1.60'
	$(PY) -m pip install -q --disable-pip-version-check --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.installed
	$(PY) -m pip install -q --disable-pip-version-check --no-build-isolation -e '.[dev]'
	@touch $@

.PHONY: build
build: $(VENV)/.installed ## make .venv, build everything in place; only what changed is built again
	@$(PY) setup.py -q build_ext --inplace

.PHONY: dev
dev: $(VENV)/.dev build ## build, and install the tools that tests and linters need

.PHONY: run
run: build ## build and serve on 6650 and 8080 in the foreground (ARGS='--data DIR ...')
	@exec $(BIN)/pyxbroker standalone $(ARGS)

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{sub(/ .*/, "", $$1); printf "  make %-10s %s\n", $$1, $$2}' \
	    $(MAKEFILE_LIST)
