# `make` prints the targets. One environment, .venv, serves all of them.

# Extra arguments for pip. PyPI's torch for Linux is the CUDA build; for the small CPU build:
#   make test PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
PIP_ARGS ?=
JOBS ?= 2
OUT ?= docs/gpu
ARGS ?=

BIN := .venv/bin
STAMP := .venv/relight.stamp
CLIENTS := .cache/relight/clients

.PHONY: help setup check fix test test-clients test-gpu gpu run docs size lock

help: ## print this
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

setup: $(STAMP) ## make the environment .venv

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/pip || sh tools/venv.sh .venv
	@echo "installing into .venv; the first time this fetches torch and takes minutes"
	@$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e '.[test]' || \
	{ echo "pip failed (above); it needs a package index: see PIP_ARGS in README.md" >&2; exit 1; }
	@touch $@

check: setup ## format, lint, types, import contracts, documents
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.lint
	$(BIN)/python -m tools.docs --check

fix: setup ## format, and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: check ## check, then all tests that need no accelerator
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/pytest -n $(JOBS) --dist worksteal $(ARGS)

test-clients: $(CLIENTS)/stamp ## LangChain and LiteLLM against a live server; installs 450 MB
	PYTHONPATH=$(CLIENTS) OMP_NUM_THREADS=1 $(BIN)/pytest -W ignore tests/clients $(ARGS)

$(CLIENTS)/stamp: tests/clients/requirements.txt | $(STAMP)
	rm -rf $(CLIENTS)
	$(BIN)/python -m pip install --quiet --target $(CLIENTS) -r tests/clients/requirements.txt
	@touch $@

test-gpu: setup ## the tests marked gpu, on this machine's accelerator
	$(BIN)/pytest -m gpu $(ARGS)

gpu: setup ## all that needs a GPU, in one call of seven minutes, into OUT=docs/gpu
	$(BIN)/python -m tools.gpu --out $(OUT) $(ARGS)

run: setup ## serve ember, the small model inside the package, on 127.0.0.1:8000
	$(BIN)/relight serve $(ARGS)

docs: setup ## write the documents that are generated from code
	$(BIN)/python -m tools.docs

size: setup ## count the lines of each room
	$(BIN)/python -m tools.size

lock: setup ## write constraints.txt from .venv
	$(BIN)/python -m tools.lock
