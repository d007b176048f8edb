# Everything runs in .venv, which is made from the pinned requirements-dev.txt on first use.
# `make test LATERMQ_DEBUG=1` does the same with bounds checks and C assertions compiled in.

PYTHON ?= python3
ROUNDS ?= 100
STATES ?= 500000
FUZZ ?= 600
CUTS ?= 20
PY := .venv/bin/python
STYLE_TESTS := tests/test_tidy.py tests/test_layers.py tests/test_source.py

.DEFAULT_GOAL := help
.PHONY: help build clients demo sanitized test soak lint lock clean
.PHONY: bench bench-check bench-cold bench-connections bench-curves bench-recovery

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: .venv/installed  ## compile what changed (the first time: set up .venv as well)
	@$(PY) setup.py --quiet build_ext --inplace

clients: .venv/installed  ## get the clients of Node, Java and Go that `make test` else skips
	@$(PY) -m tests.support.client_setup

demo: build  ## delayed messages through a broker that is killed half-way, with a live view
	@$(PY) perf/demo.py

sanitized: build
	@$(PY) -m tests.fuzz.sanitized

test: sanitized  ## all tests (ARGS="..." goes to pytest)
	@$(PY) -m pytest -q $(ARGS)

soak: sanitized  ## ROUNDS=n kills, CUTS=n power cuts, STATES=n crashes, FUZZ=n seconds
	@$(PY) -m pytest -q tests/kill9 tests/store tests/offsets tests/fuzz tests/realdisk \
		tests/clients/test_rebalances.py --rounds $(ROUNDS) --power-cuts $(CUTS) \
		--states $(STATES) --fuzz-seconds $(FUZZ) --timeout 0 -o faulthandler_timeout=0

bench: build  ## how fast, beside Kafka, a mock broker and the raw machine (ARGS="--only lateness")
	@$(PY) -m perf.bench $(ARGS)

bench-check: build  ## has a ratio become worse than perf/baseline.json says?
	@$(PY) -m perf.check $(ARGS)

bench-cold: build  ## how late timers in memory are while 100,000 on the disk are due
	@$(PY) -m perf.cold $(ARGS)

bench-connections: build  ## what a good client notices of a thousand bad ones
	@$(PY) -m perf.connections $(ARGS)

bench-curves: build  ## what records, partitions, connections and pending timers cost as they grow
	@$(PY) -m perf.curves $(ARGS)

bench-recovery: build  ## how fast the log is written and a start is; memory of 10,000 queues
	@$(PY) -m perf.recovery $(ARGS)

lint: build  ## style, layers and types alone
	@$(PY) -m pytest -q $(STYLE_TESTS)

lock: .venv/locked  ## pin the newest versions that requirements*.in allow
	.venv/bin/pip-compile --quiet --upgrade --generate-hashes --allow-unsafe --strip-extras \
		--no-header --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
		--no-emit-options --output-file requirements-dev.txt requirements-dev.in

clean:  ## remove what the build made, except .venv
	rm -rf build dist latermq.egg-info _core/*.so
	find appliance compat _core tests perf -name __pycache__ -exec rm -rf {} +

.venv/locked: requirements-dev.txt
	@command -v $(PYTHON) >/dev/null || \
		{ echo "missing: Python 3.11 or newer; apt-get install python3" >&2; exit 1; }
	@$(PYTHON) .ci/preflight.py
	@echo "installing the pinned tools and libraries into .venv (once, about a minute)"
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt
	@touch $@

.venv/installed: .venv/locked pyproject.toml requirements.in
	@echo "compiling (about a minute the first time)"
	@PYTHONWARNINGS=ignore $(PY) -m pip install --quiet --disable-pip-version-check \
		--no-build-isolation --no-deps -e .  # it warns of each editable installation
	@touch $@
