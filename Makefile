# Everything a bare machine with Python >= 3.11 and make needs:
#   make test   create .venv, install, run the whole suite
#   make check  the same, preceded by format, lint, types, layers and async lint
#   make soak   every promise under load, faults, kills and restarts, for MINUTES (10); SEED replays one
#   make demo   a server, two clients, a cancel, a permission, a crash: everything real but the model
#   make serve  start the server on ADDRESS; ctrl-c stops it
#   make setup  create .venv and install the package with its development tools, nothing else
#   make build  sdist and wheel in dist/, checked
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
STAMP  := $(VENV)/.installed
PYTEST ?= $(BIN)/pytest
MINUTES ?= 10
ADDRESS ?= tcp://127.0.0.1:8765

.PHONY: test check lint format bench soak demo serve setup build clean

test: $(STAMP)
	$(PYTEST) -n auto --dist worksteal -m "not slow"
	$(PYTEST) -n auto --dist loadfile -m slow

check: lint test

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/flake8-async --enable ASYNC101,ASYNC102,ASYNC103,ASYNC113,ASYNC900,ASYNC910,ASYNC911 \
		$$(git ls-files 'crush_trio/*.py')

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)
	$(BIN)/python -m benchmarks

soak: $(STAMP)
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

demo: $(RUNTIME)
	@$(BIN)/python examples/demo.py

serve: $(RUNTIME)
	@$(BIN)/python -m crush_trio serve --host $(ADDRESS)

setup: $(STAMP)

build: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build --quiet
	$(BIN)/twine check --strict dist/*

$(RUNTIME): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "crush_trio needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(STAMP): $(RUNTIME)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
