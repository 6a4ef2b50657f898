# Each target installs what it needs: python3, make and a package index are sufficient.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
STAMP   = $(VENV)/.installed
COLLECTED = $(VENV)/.collected
WORKERS ?= 4
RATE    ?= 200
UI_JOURNAL ?= $(VENV)/large-journal.db
SEEDS ?= 1000
FIRST ?= 0
PROCESSES ?= 1
KILLS ?= 20
SEED ?=

# Many tests start processes; without stored bytecode, each one would compile the package.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test checks test-plugins test-thorough fuzz simulate takeover torture hostile benchmark benchmark-groups benchmark-scale benchmark-ui soak lint types contracts constraints audit sbom docs release clean

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt plugins/asched-gpu/pyproject.toml plugins/asched-optimal/pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the pinned dependencies into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r constraints.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . -e plugins/asched-gpu -e plugins/asched-optimal
	@touch $@

setup: $(STAMP)  ## create the virtual environment with pinned, hash-checked dependencies

demo: $(STAMP)  ## schedule 2,000 pods on a simulated 200-node cluster, live
	@$(BIN)/asched demo

test: $(STAMP)  ## run everything that CI runs: style, types, import contracts, tests
	@$(MAKE) --no-print-directory --jobs 2 checks test-plugins $(COLLECTED)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

checks: lint types contracts audit

test-plugins: test-asched-gpu test-asched-optimal

test-asched-%: $(STAMP)
	@$(BIN)/python -m pytest -c plugins/asched-$*/pyproject.toml plugins/asched-$*/tests

# The first collection stores the compiled tests, so that not every worker compiles all of them.
$(COLLECTED): $(STAMP)
	@$(BIN)/python -m pytest --collect-only --quiet >/dev/null
	@touch $@

test-thorough: $(STAMP)  ## run the tests with all examples and long runs, where `make test` takes a part
	@HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

fuzz: $(STAMP)  ## run the property tests with new random examples
	@HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
	@HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest -c plugins/asched-gpu/pyproject.toml plugins/asched-gpu/tests

simulate: $(STAMP)  ## run the daemon with random faults for SEEDS seeds on a virtual clock (FIRST, PROCESSES)
	@$(BIN)/python -m tests.fault_simulation --seeds $(SEEDS) --first $(FIRST) --processes $(PROCESSES)

takeover: $(STAMP)  ## kill the leader of two replicas KILLS times under load, with both kinds of journal
	@$(BIN)/python -m tests.replicas --kills $(KILLS)

torture: MINUTES ?= 10
torture: $(STAMP)  ## inject drawn faults into two real replicas for MINUTES minutes (SEED)
	@$(BIN)/python -m tests.torture --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

benchmark: $(STAMP)  ## measure the figures of docs/explanation/performance.md (SCHEDULER_PERF: that folder of Kubernetes, KUBE_SCHEDULER: a binary to compare with)
	@$(BIN)/python -m benchmarks.suite --definitions $(SCHEDULER_PERF) $(if $(KUBE_SCHEDULER),--kube-scheduler $(KUBE_SCHEDULER))

benchmark-groups: $(STAMP)  ## compare ways to schedule gangs on the openb trace in folder OPENB
	@$(BIN)/python -m benchmarks.groups.measure --openb $(OPENB)
	@$(BIN)/python -m benchmarks.groups.measure --openb $(OPENB) --workload philly

benchmark-scale: $(STAMP)  ## measure the daemon with up to 100,000 nodes and a million bound pods
	@$(BIN)/python -m benchmarks.scale.measure

benchmark-ui: $(STAMP)  ## measure the browser interface on a million records (UI_JOURNAL: recorded if missing)
	@test -f $(UI_JOURNAL) || $(BIN)/python -m benchmarks.ui.record $(UI_JOURNAL)
	@$(BIN)/python -m benchmarks.ui.measure $(UI_JOURNAL)

soak: MINUTES ?= 30
soak: $(STAMP)  ## create and delete pods for MINUTES minutes and check for growth (RATE)
	@$(BIN)/python -m benchmarks.soak --minutes $(MINUTES) --rate $(RATE)

hostile: $(STAMP)  ## measure what hostile objects cost with 5,000 nodes and 50,000 pods
	@$(BIN)/python -m benchmarks.hostile

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(STAMP)
	@$(BIN)/mypy

contracts: $(STAMP)
	@$(BIN)/lint-imports

audit: $(STAMP)  ## check dependencies for known vulnerabilities, if a source of advisories is reachable
	@$(BIN)/python -m tests.security.audit

sbom: $(STAMP)  ## write the software bill of materials (CycloneDX) of the image to dist/asched.cdx.json
	@$(BIN)/python -m tests.security.sbom dist/asched.cdx.json

docs: $(STAMP)  ## build the documentation site in dist/site, with strict checks of its links
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m properdocs build --strict --config-file mkdocs.yml

release: $(STAMP)  ## test, build and try wheel and sdist of this version in dist, from a clean checkout (ARGS)
	@$(BIN)/python -m tests.release $(ARGS)

constraints:  ## update the pins to the newest allowed versions (needs pip-tools)
	@$(BIN)/pip-compile --quiet --upgrade --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-emit-trusted-host --no-header --no-annotate --extra dev --allow-unsafe --strip-extras \
	  -o constraints.txt pyproject.toml

clean:  ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
