# Every target sets up what it needs: a clone, python3.11 with venv, and make are enough.
#
#   make demo         train the quickstart and draw its curve
#   make test         lint, types and tests: what CI runs
#   make test-slow    the tests that take minutes
#   make bench        speed of the parts of Parity
#   make bench-peers  speed beside TRL, which gets an environment of its own
#   make lint         lint and types only        make format   put the code into shape
#   make clean        remove environments, caches and built files, but no runs

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PEERS := .venv-peers
PEERS_INSTALLED := $(PEERS)/.installed
CONSTRAINTS := requirements/constraints.txt
TORCH := $(shell grep '^torch==' $(CONSTRAINTS))
BENCHES := $(filter-out bench/peers%.py,$(wildcard bench/*.py))

# Build environments that pip makes obey the pins too.
export PIP_CONSTRAINT := $(CURDIR)/$(CONSTRAINTS)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-slow bench bench-peers lint format install clean
.DEFAULT_GOAL := test

install: $(INSTALLED)

$(INSTALLED): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q '$(TORCH)' -c $(CONSTRAINTS)
	$(BIN)/python -m pip install -q -e '.[dev]' -c $(CONSTRAINTS)
	@touch $@

demo: $(INSTALLED)
	$(BIN)/parity train quickstart
	$(BIN)/parity show latest

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

test-slow: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)
	@for script in $(BENCHES); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

bench-peers: $(INSTALLED) $(PEERS_INSTALLED)
	$(BIN)/python bench/peers.py --trl-python $(PEERS)/bin/python

$(PEERS_INSTALLED): requirements/peers.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install -q '$(TORCH)' -c $(CONSTRAINTS)
	$(PEERS)/bin/python -m pip install -q -r requirements/peers.txt -c $(CONSTRAINTS)
	@touch $@

clean:
	rm -rf $(VENV) $(PEERS) build dist .pytest_cache .ruff_cache .hypothesis
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
