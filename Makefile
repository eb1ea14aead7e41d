# Two commands matter: `make test` and `make check`. Both need Python 3.11, make and access to a package index.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Written last, so that an incomplete .venv is completed. Inside .venv, so that both are removed together.
READY := $(VENV)/.ready
# The version of the requested interpreter. A .venv with another version is created again.
ASKED := $(if $(filter file,$(origin PYTHON)),,yes)
# The shims of pyenv refuse a version that is not activated, although its interpreter would run.
ifeq ($(shell $(PYTHON) -V 2>/dev/null),)
override PYTHON := $(or $(lastword $(wildcard $(HOME)/.pyenv/versions/*/bin/$(PYTHON))),$(PYTHON))
endif
WANTED := $(if $(ASKED),$(or $(shell $(PYTHON) -V 2>/dev/null),none))
# The lock pins uv too.
UV_VERSION := $(shell sed -n '/^name = "uv"$$/{n;s/^version = "\(.*\)"$$/\1/p;}' uv.lock)

export UV_PROJECT_ENVIRONMENT := $(VENV)
export UV_PYTHON_DOWNLOADS := never
# Ignore an environment that happens to be active.
unexport VIRTUAL_ENV
# Containers set it. The tests start hundreds of processes, and each would compile all that it imports, for seconds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test properties coverage model chaos cluster fleet dashboards frontends backups deployment upgrade check bench capacity console docs exports screens reference hooks fmt python
ifneq ($(WANTED),)
ifneq ($(WANTED),$(shell $(BIN)/python -V 2>/dev/null))
.PHONY: $(READY)
endif
endif

help:  ## Say what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-12s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY)  ## Kill a worker in the middle of a run, and watch another one finish it
	@$(BIN)/python examples/survive.py

TESTS :=
COVERAGE :=
# They read the sources and start nothing: layers, names, prose, rules, documentation. Part of `make check`.
OF_SOURCES := $(addprefix tests/test_,$(addsuffix .py,architecture background docs language rules)) tests/console/test_sources.py
# Side by side, a file in one process; in the order of tests/conftest.py: those that wait the longest come first.
# Six processes keep two cores busy: a test waits more than half of its time, for a server, a process or an outage.
PROCESSES := 6
test: $(READY)  ## Run all tests of what the software does
	@$(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder \
		$(COVERAGE) $(addprefix --ignore=,$(OF_SOURCES)) $(TESTS)

# Apart from `make test`: to count lines and branches takes the domain's tests 70 % more CPU time.
coverage: COVERAGE := --cov --cov-report=term-missing:skip-covered
coverage: test  ## Run all tests and report what they cover

properties: $(READY)  ## Try a thousand random examples of every property, where `make test` tries thirty, and ten thousand HTTP requests
	@$(BIN)/python -m pytest --numprocesses 2 --dist load -m hypothesis --hypothesis-profile=thorough tests
	@$(BIN)/python -m pytest -m slow tests/everstep/http_api/test_anything.py

model: $(READY)  ## Test the real local model, which is downloaded first (1.1 GB)
	@$(BIN)/everstep models download local
	@$(BIN)/python -m pytest -s -m slow tests/everstep/runtime/test_real_local_model.py

chaos: $(READY)  ## Let everything go wrong for half an hour: nothing acknowledged is lost, and viewers see what happened
	@EVERSTEP_CHAOS=long $(BIN)/python -m pytest -s tests/acceptance/test_streams_survive.py tests/acceptance/test_storm.py
	@EVERSTEP_CHAOS=long EVERSTEP_CHAOS_BUS=nats $(BIN)/python -m pytest -s tests/acceptance/test_streams_survive.py

cluster: $(READY)  ## Run on a Temporal cluster, which Go builds once, and kill each of its processes
	@$(BIN)/python -m tests.cluster

fleet: $(READY)  ## Let hosts of a fleet lose each other for half an hour: network namespaces, as root
	@$(BIN)/python -m tests.fleet

dashboards: $(READY)  ## Draw the dashboards of Grafana for an installation that works; needs Prometheus
	@$(BIN)/python -m tests.dashboards

frontends: $(READY)  ## Let clients of AG-UI, of the AI SDK and of OpenAI read random runs, while processes are killed and connections are cut
	@EVERSTEP_RANDOM_RUNS=2000 $(BIN)/python -m pytest -q tests/wires -k random
	@$(BIN)/python -m pytest -s -m slow tests/acceptance/test_front_ends_survive.py tests/acceptance/test_responses_survive.py

deployment: $(READY)  ## Run the pods of the Helm chart as processes, nginx in front of processes, and an API with a standby; load docker-compose.yml
	@$(BIN)/python -m pytest -s -m slow tests/deployment \
		tests/acceptance/test_behind_nginx.py tests/acceptance/test_a_standby_is_read.py

# An earlier release, whose tables, workflows and protocols differ from today's.
FROM := 0c3a5500
upgrade: $(READY)  ## Run an earlier release (FROM=COMMIT) and this one side by side, with executions under way, there and back
	@EVERSTEP_OLD_RELEASE="$$($(BIN)/python -m tests.upgrades.releases $(FROM))" && export EVERSTEP_OLD_RELEASE && \
		$(BIN)/python -m pytest -s -m slow tests/upgrades

backups: $(READY)  ## Restore backups of both databases, of the same and of different times, and see executions go on
	@$(BIN)/python -m pytest -m slow tests/acceptance/test_restored_backups.py

check: $(READY)  ## Check the sources: format, lint, types, layers, names, prose, rules, documentation
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/python -m pyright
	@$(BIN)/python $(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/python -m tests.rules
	@$(BIN)/python -m pytest --quiet --numprocesses 2 $(OF_SOURCES)

bench: $(READY)  ## Run the benchmarks: the domain, durability, the HTTP API, search, budgets, fairness, what-ifs, the gateway, the buses, capabilities
	@export EVERSTEP_BENCH_FIGURES=bench/figures; missed=0; \
	for each in domain engine api search budgets fairness what_if gateway buses capabilities; do \
		$(BIN)/python bench/$$each.py || missed=1; \
	done; $(BIN)/python bench/report.py; exit $$missed

capacity: $(READY)  ## Measure how many executions stream at once from one worker, on this machine
	@export EVERSTEP_BENCH_FIGURES=bench/figures; missed=0; \
	for each in "--executions 500 700 1000" "--executions 1000 --processes 2" "--executions 300 --fill" "--paused 500"; do \
		$(BIN)/python bench/fleet.py $$each || missed=1; \
	done; $(BIN)/python bench/report.py; exit $$missed

console: $(READY)  ## Measure the console in a session of 50,000 envelopes: frames, scripts, memory, first paint
	@PYTHONPATH=. $(BIN)/python bench/console.py

docs: $(READY)  ## Build the documentation as a site, in site/; dead links are errors
	@$(BIN)/python -m sphinx -c docs -b html --fail-on-warning --keep-going --quiet . site
	@echo "The site is in site/docs/index.html"

reference: $(READY)  ## Generate docs/reference from the code
	@$(BIN)/python docs/generate.py

exports: $(READY)  ## Export a run of each kind, and run the tests in a fresh clone without servers
	@$(BIN)/python -m tests.workflows.exported_runs

screens: $(READY)  ## Make the pictures of docs/terminal.md and docs/console.md; needs tmux and Chromium
	@$(BIN)/python docs/screens.py
	@PYTHONPATH=. $(BIN)/python docs/console_screens.py

python:
	@$(PYTHON) -c 'import sys, ensurepip; print(sys.executable)' 2>/dev/null

hooks:  ## Let git check the title of each commit, as `make check` does later
	@git config core.hooksPath .githooks

fmt: $(READY)  ## Format the code, and fix what can be fixed automatically
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

# uv uses the public index only and refuses a lock made for another one. If pip is configured with another
# index, pip installs the same versions, checked against the same hashes. A user without a writable home, such
# as that of a container, has no cache.
$(READY): pyproject.toml uv.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Everstep needs Python 3.11 or later, and '$(PYTHON)' does not run here or is older." \
			"Name another one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "Setting up $(VENV) as locked in uv.lock ..." >&2
	@{ $(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && \
		{ test -z "$(WANTED)" || test "$$($(BIN)/python -V)" = "$(WANTED)"; }; } || \
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
