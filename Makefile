# Two commands matter: `make test` and `make check`. Both need Python 3.11, make and a package index.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Made last, so that a .venv without it is half made and is mended. Inside .venv, so that both go together.
READY := $(VENV)/.ready
# uv is locked like everything else, and the lock is what bootstraps it.
UV_VERSION := $(shell sed -n '/^name = "uv"$$/{n;s/^version = "\(.*\)"$$/\1/p;}' uv.lock)

export UV_PROJECT_ENVIRONMENT := $(VENV)
export UV_PYTHON_DOWNLOADS := never
# Another environment that happens to be active is none of ours.
unexport VIRTUAL_ENV

.DEFAULT_GOAL := help
.PHONY: help demo test chaos check bench fmt

help:  ## Say what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY)  ## Kill a worker in the middle of an agent's work, and watch another one finish it
	@$(BIN)/python examples/survive.py

# Side by side, a file in one process; in the order in which they stand, as those that wait the longest come first.
test: $(READY)  ## Run all tests and report what they cover
	@$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder \
		--cov --cov-report=term-missing:skip-covered

chaos: $(READY)  ## Let everything go wrong at once for minutes, and see that viewers end up with what happened
	@EVERSTEP_CHAOS=long $(BIN)/python -m pytest -s tests/acceptance/test_streams_survive.py

check: $(READY)  ## Run all checks: format, lint, types, layers, rules without a test
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/python -m pyright
	@$(BIN)/python $(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/python -m tests.rules

bench: $(READY)  ## Measure how fast the domain decides, and what durability, the HTTP API, the gateway and capabilities cost
	@missed=0; for each in domain engine api gateway capabilities; do $(BIN)/python bench/$$each.py || missed=1; done; exit $$missed

fmt: $(READY)  ## Format, and mend what can be mended
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

# uv asks the public index only and refuses a lock made for another, so where pip is told to use an index
# of its own, pip installs: the same versions, checked against the same hashes. Whoever has no home to keep
# a cache in (a container's user, say) does without one.
$(READY): pyproject.toml uv.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Everstep needs Python 3.11 or later, which '$(PYTHON)' is not." \
			"Name another one: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Setting up $(VENV) with what uv.lock names ..." >&2
	@$(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		$(PYTHON) -m venv --clear $(VENV)
	@test "$$($(BIN)/uv --version 2>/dev/null | cut -d ' ' -f 2)" = "$(UV_VERSION)" || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --force-reinstall uv==$(UV_VERSION)
	@cache="$$($(BIN)/uv cache dir)"; mkdir -p "$$cache" 2>/dev/null && test -w "$$cache" || export UV_NO_CACHE=1; \
	if $(BIN)/python -m pip config list | grep '[.]index-url=' >/dev/null; then \
		$(BIN)/uv export --quiet --frozen --all-extras --no-emit-project --output-file $(VENV)/locked.txt && \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement $(VENV)/locked.txt && \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .; \
	else \
		$(BIN)/uv sync --quiet --locked --all-extras; \
	fi
	@touch $@
