# Every target says what it does: make help.
.DEFAULT_GOAL := help
.PHONY: help setup machine demo test check prove lint types docs bench soak results lock clean

BIN := .venv/bin
READY := .venv/.ready
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal
HOURS ?= 1

help: ## show this list
	@sed -nE 's/^([a-z]+):[^#]*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: $(READY) ## install everything into .venv; does nothing when it is up to date

$(READY): requirements.lock pyproject.toml tools/setup.sh tools/uv.sh
	@tools/setup.sh
	@touch $@

machine: setup ## install what the tests need beside Python: databases, Node, a C compiler, strace
	@$(BIN)/python tools/machine.py

demo: setup ## run the book pipeline, kill it half-way, resume, reconcile, audit
	@$(BIN)/holdfast demo

test: lint types machine ## everything but the soak, and a passing test for every promise in force
	$(PYTEST) -m "not soak and not quick" --promises=build/promises.json
	$(BIN)/python tools/guarantees.py --check --results build/promises.json

check: lint types machine ## the quick part of the tests, about three minutes
	$(PYTEST) -m "not slow and not soak"

prove: setup machine ## run the tests of one promise: make prove PROMISE=C8
	$(PYTEST) -m "not soak and not quick" --promise=$(PROMISE)

lint: setup ## ruff: style and common mistakes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup ## mypy, strict
	$(BIN)/mypy

docs: setup ## write the generated docs: api, commands, the states in architecture, the promises in guarantees
	$(BIN)/python tools/states.py
	$(BIN)/python tools/commands.py
	$(BIN)/python tools/api.py
	$(BIN)/python tools/guarantees.py --docs

bench: setup ## measure speed against the floor, a hand-written script and the peers; ARGS go to bench
	$(BIN)/python -m bench $(ARGS)

soak: setup ## run the fault generators for HOURS=n hours, print totals and seeds
	$(BIN)/python tests/soak.py --hours $(HOURS)

results: setup ## collect the results to publish with a release in build/results: guarantees, benchmarks, soak
	$(BIN)/python tools/guarantees.py
	$(BIN)/python tools/guarantees.py --check --results build/promises.json
	$(BIN)/python tools/results.py

lock: ## resolve the dependencies of pyproject.toml again, into requirements.lock
	tools/uv.sh pip compile -q --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-header --all-extras --output-file requirements.lock pyproject.toml

clean: ## remove the environment and everything that runs left behind
	rm -rf .venv .uv .holdfast out build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
