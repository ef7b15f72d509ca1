# `make quickstart` and `make test` set up everything they need in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder
# Each of some hundred processes of the tests would compile the package anew where this is set.
export PYTHONDONTWRITEBYTECODE :=
INSTALL := $(BIN)/pip install --disable-pip-version-check --constraint constraints.txt

.PHONY: setup setup-dev quickstart test test-rest test-extras test-all schedules slowest lint docs docs-serve clean

setup: $(VENV)/.installed
setup-dev: $(VENV)/.installed-dev

# Every version comes from constraints.txt. A CPU build of torch is enough and ten times smaller; where pip finds none,
# the default build works too.
$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL) --editable '.[maniskill]'
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL) --editable '.[maniskill,dev]'
	touch $(VENV)/.installed $@

quickstart: setup
	$(BIN)/rlpipe train configs/ppo_push_cube.yaml

# The three tiers of tests: docs/testing.md.
test: setup-dev
	$(PYTEST) -m "not soak and not extras"

test-rest: setup-dev
	$(PYTEST) -m "soak or extras"

test-extras: setup-dev
	$(PYTEST) -m extras

# Writes down what every file took; the next run starts the longest first.
test-all: setup-dev
	$(PYTEST) --write-seconds

# 1,000 seeds of faults on a simulated cluster; 20 of them are part of `make test`.
schedules: setup-dev
	RLPIPE_SCHEDULES=1000 $(BIN)/python -m pytest --numprocesses 2 tests/faults/test_schedules.py -k of_a_seed

slowest: setup-dev
	$(BIN)/python -m tests.helpers.seconds

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation as a site in site/, which opens from file://. A broken link or anchor is an error.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs
docs: setup-dev
	$(MKDOCS) build --config-file docs/site/mkdocs.yml

# The same on http://127.0.0.1:8000, which follows changes. Cells of tutorials run again only where something changed.
docs-serve: setup-dev
	$(MKDOCS) serve --config-file docs/site/mkdocs.yml

clean:
	rm -rf $(VENV) build dist site *.egg-info
