# Everything a bare machine with Python >= 3.11, git, bash and make needs:
#   make quick  part of the fast tests, in less than a minute: no explorations, few seeds
#   make test   create .venv, install, run the suite; 5 minutes on two cores, no other programs needed
#   make check  format, lint, types, layers, async lint, then every test: also the long explorations
#               and what runs other programs (tests/programs.txt), which root on Debian gets installed
#   make sandboxes  what runs commands, with Landlock instead of bubblewrap; a part of it without a sandbox
#   make lowest the fast tests with the lowest supported versions (tests/lowest.txt), in .venv-lowest
#   make races  how soon each strategy of the race finder finds each seeded bug, into docs/races.md
#   make soak   every promise under load, faults, kills and restarts, for MINUTES (10); SEED replays one
#   make guard  whether what a person waits for is as fast as promised, next to a simple server; part of make check
#   make chaos  SEEDS (10000) simulations of a cluster in one process, then one of three nodes and PostgreSQL
#               under faults, ROUNDS (60) of each; SEED repeats the choices
#   make demo   a server, two clients, a cancel, a permission, a crash: everything real but the model
#   make cluster-demo  a PostgreSQL, three servers on it, a client whose server is killed: the same
#   make serve  start the server on ADDRESS; ctrl-c stops it
#   make setup  create .venv and install the package with its development tools, nothing else
#   make build  sdist and wheel in dist/, checked
# For pytest: PYTEST_ADDOPTS="--cpu 20" make test lists the 20 tests that use most CPU.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
STAMP  := $(VENV)/.installed
DEMO   := $(VENV)/.demo
PYTEST ?= $(BIN)/pytest
MINUTES ?= 10
ROUNDS ?= 60
SEEDS ?= 10000
ADDRESS ?= tcp://127.0.0.1:8765
LOWEST := .venv-lowest
LOWEST_PYTEST ?= $(LOWEST)/bin/pytest
FAST   := not slow and not long and not needs
SANDBOXED := tests/tools/sandbox tests/tools/shell/test_bash.py tests/tools/shell/test_bash_sandbox.py \
	tests/tools/shell/test_environment.py tests/tools/test_private.py tests/contract/test_h_processes.py \
	tests/integrations/test_sandboxed_programs.py tests/cli/test_security_checks.py
COMMANDS := tests/tools tests/integrations tests/contract tests/cli tests/e2e
# Two workers more than there are cores: slow tests mostly wait, while the others compute.
ALL    := -n $$(($$(nproc) + 2)) --dist worksteal

# Without cached bytecode each of the hundreds of processes that tests start compiles the package.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quick test check sandboxes lint programs lowest format bench guard races soak chaos demo cluster-demo serve setup \
	build clean

quick: $(STAMP)
	$(PYTEST) $(ALL) --quick -m "$(FAST)"

test: $(STAMP)
	$(PYTEST) $(ALL) -m "not long and not needs"

check: lint programs test
	$(PYTEST) $(ALL) -m "long or needs"
	$(MAKE) sandboxes
	$(MAKE) guard

# As on a machine without bubblewrap (an empty file is mounted over the program, so that Landlock is used):
# the parts of the suite that run commands in their quick form, slow tests included, and all that is about
# the sandbox; the latter also without any sandbox.
WITHOUT_BWRAP = bwrap --dev-bind / / --ro-bind /dev/null "$$(command -v bwrap)"
sandboxes: $(STAMP)
	$(WITHOUT_BWRAP) $(PYTEST) $(ALL) --quick -m "not long and not needs" $(COMMANDS)
	$(WITHOUT_BWRAP) $(PYTEST) $(ALL) -m "not long and not needs" $(SANDBOXED)
	CRUSH_TRIO_TEST_SANDBOX=none $(PYTEST) $(ALL) -m "not long and not needs" $(SANDBOXED)

programs:
	@.ci/programs

lowest: $(LOWEST)/.installed
	$(LOWEST_PYTEST) $(ALL) --quick -m "$(FAST)"

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	git ls-files -z 'crush_trio/*.py' | xargs -0 -n 50 -P "$$(nproc)" \
		$(BIN)/flake8-async --enable ASYNC101,ASYNC102,ASYNC103,ASYNC113,ASYNC900,ASYNC910,ASYNC911

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)
	$(BIN)/python -m benchmarks

guard: $(STAMP)
	$(BIN)/python -m benchmarks.guard

races: $(STAMP)
	$(BIN)/python -m benchmarks.races --page docs/races.md

soak: $(STAMP)
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

chaos: $(STAMP)
	$(BIN)/python -m benchmarks.simulation --seeds $(SEEDS)
	$(BIN)/python -m benchmarks.chaos --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

demo: $(RUNTIME)
	@$(BIN)/python examples/demo.py

cluster-demo: $(DEMO)
	@PYTHONPATH=. $(BIN)/python examples/cluster_demo.py

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
	@touch $@ $(DEMO)

$(DEMO): $(RUNTIME)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[cluster-demo]'
	@touch $@

$(LOWEST)/.installed: pyproject.toml tests/lowest.txt
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint tests/lowest.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) $(LOWEST) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
