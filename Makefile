# `make quickstart` and `make test` set up everything they need in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup setup-dev quickstart test lint clean

setup: $(VENV)/.installed
setup-dev: $(VENV)/.installed-dev

# Every version comes from constraints.txt. A CPU build of torch is enough and ten times smaller; where pip finds none,
# the default build works too.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[maniskill]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[maniskill,dev]'
	touch $@

quickstart: setup
	$(BIN)/rlpipe train configs/ppo_push_cube.yaml

test: setup-dev
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist *.egg-info
