# The commands of a contributor and of the CI. Every path is relative and every tool is run as `python -m`, so
# that a checkout in a folder with a space in its name works too.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
CLIENTS := .venv-clients
MARK := .made-by-make
FORMS := $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
TRANSFORMERS := $(shell sed -n 's/^transformers==//p' constraints.txt)
THEIR_TESTS := .transformers_cache/$(TRANSFORMERS)/tests/__init__.py
PIP_INSTALL := -m pip --quiet --disable-pip-version-check --no-input install --constraint constraints.txt

# "whole" when the last install ran to its end and its Python finds the package in this very folder. Anything else
# (an interrupted install, a moved checkout, a base Python that is gone) is made anew.
STATE := $(shell test -e $(STAMP) && $(PY) -c "import importlib.util as u, os; \
	found = u.find_spec('torch_linformer').submodule_search_locations[0]; \
	os.path.samefile(found, 'src/torch_linformer') and print('whole')" 2>/dev/null)

# An environment without the mark is somebody's own: it is neither emptied nor installed into.
check_mark = test -e $(1)/$(MARK) || ! test -e $(1) -o -L $(1) || { \
	  echo "$(1) was not made by this Makefile and stays as it is; name another: make $(MAKECMDGOALS) $(2)=$(1)-dev" >&2; \
	  exit 1; }
make_venv = rm -rf $(1) && mkdir $(1) && touch $(1)/$(MARK) && $(PYTHON) -m venv $(1)

.DEFAULT_GOAL := help
.PHONY: help setup train test coverage bench gpu fuzz soak soak-serve clients test-clients test-hf check docs build release-check clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s%s\n", $$1, $$2 }' Makefile

setup: $(STAMP)  ## make .venv and install the package with everything its development needs

ifneq ($(STATE),whole)
.PHONY: $(STAMP)
endif

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null || { \
	  version=$$($(PYTHON) -c "import platform; print(platform.python_version())" 2>/dev/null || echo missing); \
	  echo "Python 3.11 or newer is needed; $(PYTHON) is $$version. Name another: make setup PYTHON=/path/to/python" >&2; \
	  exit 1; }
	@$(call check_mark,$(VENV),VENV)
	@echo "installing torch-linformer and its tools into $(VENV) (1.8 GB with a CPU-only torch, more with CUDA)"
	@rm -f $(STAMP)
	@$(if $(filter whole,$(STATE)),,$(call make_venv,$(VENV)))
	@$(PY) $(PIP_INSTALL) torch
	@$(PY) $(PIP_INSTALL) --editable ".[dev]"
	@touch $(STAMP)

# Search in Python's own library: docstrings find the files that they were taken out of, of packages held out.
SEARCH := --task embed --data stdlib --test 0.5 --vectors 8 --output runs/search

train: setup  ## learn to search in Python's library, or what ARGS="..." says; goes on where it was interrupted
	@$(PY) -m torch_linformer.cli train --resume $(or $(ARGS),$(SEARCH))

# cuda, mps, ...: where the tests of the arithmetic and the models put their tensors.
DEVICE := cpu

test: setup  ## run the tests; options go in ARGS="..."; DEVICE=cuda runs those of the arithmetic and the models there
	@$(PY) -m pytest --device=$(DEVICE) --numprocesses=auto --maxprocesses=4 --dist=loadfile $(ARGS)

coverage: setup  ## run the tests and say which lines and branches none of them reached; options go in ARGS="..."
	@$(PY) -m pytest --numprocesses=auto --maxprocesses=4 --dist=loadfile --cov --cov-report=term --cov-report=html:site/coverage $(ARGS)

# An environment of their own: what these packages print and patch is not to reach the other tests.
clients: setup
	@$(call check_mark,$(CLIENTS),CLIENTS)
	@test -x $(CLIENTS)/bin/python || { $(call make_venv,$(CLIENTS)); }
	@$(CLIENTS)/bin/python $(PIP_INSTALL) torch
	@$(CLIENTS)/bin/python $(PIP_INSTALL) --editable ".[dev,clients]"

test-clients: clients $(if $(ARGS),,test-hf)  ## test with the packages that users put our models into; without ARGS also test-hf
	@$(CLIENTS)/bin/python -m pytest tests/clients -W default --numprocesses=auto --maxprocesses=2 --dist=loadfile $(ARGS)

test-hf: clients $(THEIR_TESTS)  ## run transformers' own tests of models on ours
	@$(CLIENTS)/bin/python -m pytest tests/hf -W default --numprocesses=auto --maxprocesses=4 --dist=worksteal $(ARGS)

# Out of the sdist of the version that is tested with, once; never copied into the repository.
$(THEIR_TESTS): | clients
	@echo "fetching the tests of transformers $(TRANSFORMERS)"
	@rm -rf $(@D) && mkdir -p $(@D)
	@$(CLIENTS)/bin/python -m pip --quiet --disable-pip-version-check --no-input download --no-deps \
	  --no-binary transformers --dest $(@D) transformers==$(TRANSFORMERS)
	@tar -xzf $(@D)/transformers-$(TRANSFORMERS).tar.gz -C $(@D)/.. --strip-components=1 transformers-$(TRANSFORMERS)/tests
	@rm $(@D)/transformers-$(TRANSFORMERS).tar.gz
	@touch $@

SUITE := attention

bench: setup  ## measure speed and memory: SUITE=attention|encoder|table3|scaling|causal|context|gpu, options in ARGS="..."
	@$(PY) benchmarks/run.py $(SUITE) $(ARGS)

gpu: setup  ## what to run first on a GPU, in nine minutes: its tests and the suite gpu, into one folder of results
	@$(PY) tools/gpu.py $(ARGS)

# A fresh seed each time, unless one is given.
CASES := 10000
SEED := $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')

fuzz: setup  ## test the mathematics, and the reading of long cells, with CASES=10000 drawn cases a test; SEED=... repeats a run
	@echo "to repeat this run: make fuzz SEED=$(SEED) CASES=$(CASES)"
	@CASES=$(CASES) $(PY) -m pytest tests/fuzz --device=$(DEVICE) --hypothesis-seed=$(SEED) --numprocesses=auto --dist=load $(ARGS)

soak: setup  ## kill and damage bulk runs again and again, and compare their rows; a short one: ARGS="--documents 1000 --kills 2"
	@$(PY) tools/soak.py $(ARGS)

soak-serve: setup  ## a server under all that clients may do, for minutes; ARGS="path/to/model --minutes 10"
	@$(PY) tools/soak_serve.py $(ARGS)

check: setup  ## lint, formatting, types (of the documentation too), and the files for GitHub by their schemas
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(PY) tools/check_snippets.py
	@$(PY) -m check_jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(PY) -m check_jsonschema --quiet --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	@$(PY) -m check_jsonschema --quiet --builtin-schema vendor.github-issue-forms $(FORMS)
	@$(PY) -m check_jsonschema --quiet --builtin-schema vendor.citation-file-format CITATION.cff

docs: setup  ## build the documentation into site/; a warning or a broken link is an error
	@$(PY) -m sphinx --quiet --fail-on-warning --keep-going -c docs . site
	@echo "open site/index.html"

build: setup  ## build the wheel and the sdist into dist/
	@$(PY) -m build --no-isolation

release-check: setup  ## build, and install the wheel with each extra on every Python from 3.11 to 3.14 that is here; ARGS="--extra hf"
	@$(PY) tools/release_check.py $(ARGS)

clean:  ## remove what builds and tests left behind; .venv and runs stay
	@rm -rf build dist site .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find examples src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
