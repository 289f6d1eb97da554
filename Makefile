# Each target sets up what it needs. `make demo` is the place to start.
SHELL := /bin/bash
PYTHON ?= $(firstword $(shell command -v python3.11) python3)

export VLLM_CPU_KVCACHE_SPACE ?= 2
export HF_HUB_OFFLINE ?= 1
export VLLM_NO_USAGE_STATS ?= 1

BIN := .venv/bin
# Tests that want a real model find it here; made once, in the user's cache folder.
WITH_MODEL = TOKENDANCE_TEST_MODEL=$$($(BIN)/tokendance model smollm2)
CODE := sdk engine benchmarks tests examples requirements docs
TYPED := sdk/tokendance_sdk engine/tokendance_engine benchmarks/tokendance_bench

# A stamp's name holds the hash of what it was made from: another lock, another stamp.
key = $(shell cat requirements/$(1).txt requirements/setup.sh pyproject.toml | sha256sum | cut -c1-12)
ENGINE_READY := .venv/.ready-$(call key,engine)
SDK_READY := .venv-sdk/.ready-$(call key,sdk)

.PHONY: help setup setup-sdk demo check lint types unit test test-sdk test-server test-compiled bench clean distclean

help:  ## show this
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(ENGINE_READY) $(SDK_READY)  ## both environments: .venv (engine and SDK) and .venv-sdk (SDK, newest clients)

$(ENGINE_READY):
	@echo "setting up .venv from requirements/engine.txt: about five minutes, once"
	@requirements/setup.sh .venv engine $(PYTHON) $@

$(SDK_READY):
	@echo "setting up .venv-sdk from requirements/sdk.txt: about a minute, once"
	@requirements/setup.sh .venv-sdk sdk $(PYTHON) $@

demo: $(ENGINE_READY)  ## a multi-agent story with and without TokenDance, on this CPU
	@$(BIN)/tokendance demo $(ARGS)

lint: $(ENGINE_READY)
	$(BIN)/ruff format --check $(wildcard $(CODE))
	$(BIN)/ruff check $(wildcard $(CODE))

# Examples are user code: they are checked with the packages that users have.
types: $(ENGINE_READY) $(SDK_READY)
	$(BIN)/mypy --strict $(TYPED)
	$(BIN)/mypy --strict --python-executable .venv-sdk/bin/python --cache-dir .mypy_cache/examples examples

# One more process than cores, of one thread each: many tests wait for something. The SDK's integrations are tested
# with the newest clients (test-sdk).
FEW = -n $$(($$(nproc) + 1)) --maxprocesses 8
unit: $(ENGINE_READY)
	OMP_NUM_THREADS=1 $(WITH_MODEL) $(BIN)/pytest -q $(FEW) -m "not server" --ignore tests/sdk/integrations $(ARGS)

check: lint types unit  ## lint, types, unit tests: about two minutes

test-sdk: $(SDK_READY) $(ENGINE_READY)
	$(WITH_MODEL) .venv-sdk/bin/pytest -q $(FEW) -m "not server" tests/sdk $(ARGS)

# Only this folder is collected: vLLM cannot start an engine in a process that has imported numba, as unit tests do.
test-server: $(ENGINE_READY) $(SDK_READY)
	$(WITH_MODEL) $(BIN)/pytest -q --durations 30 -m server tests/integration $(ARGS)

test-compiled: $(ENGINE_READY)  ## rounds on vLLM's compiled model: compiling takes minutes
	$(BIN)/pytest -q tests/integration/inproc/engine_compiled.py $(ARGS)

test: check test-sdk test-server  ## everything: also the SDK with the newest clients, and a real vLLM

bench: $(ENGINE_READY)  ## measure; for example ARGS="prefill --quick"
	$(BIN)/tokendance bench $(ARGS)

clean:  ## remove caches and build outputs
	rm -rf build dist sdk/*.egg-info *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./.venv -prune -o -path ./.venv-sdk -prune -o -name __pycache__ -type d -print0 | xargs -0r rm -rf

distclean: clean  ## and the environments
	rm -rf .venv .venv-sdk
