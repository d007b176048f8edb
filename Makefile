# Everything runs in .venv, which is made on first use: from the pinned requirements-build.txt, then
# requirements-demo.txt, for all but the demo from requirements-dev.txt, and for `make test` from
# requirements-spark.txt. Each pins the same versions of more.
# `make test LATERMQ_DEBUG=1` does the same with bounds checks and C assertions compiled in.
# Tests run in as many processes as there are processors; `make test JOBS=0` runs them in one.

PYTHON ?= python3
ROUNDS ?= 100
STATES ?= 500000
LIVES ?= 20000
FUZZ ?= 600
CUTS ?= 20
FILLS ?= 20
DAYS ?= 365
TIMERS ?= 100000
SCHEDULES ?= 100000
JOBS ?= logical
PY := .venv/bin/python
PIP_INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check
PYTEST := $(PY) -m pytest -q -n $(JOBS)
STYLE_TESTS := tests/test_tidy.py tests/test_layers.py tests/test_docs.py tests/test_source.py

# To install libraries and to compile, side by side.
MAKEFLAGS += --jobs=2
.DEFAULT_GOAL := help
.PHONY: help build core clients demo sanitized check test soak packages regenerate lint lock
.PHONY: clean
.PHONY: bench bench-attacks bench-check bench-cold bench-connections bench-curves bench-instructions
.PHONY: bench-fail-over bench-keys bench-pending bench-recovery bench-recycled bench-replication
.PHONY: bench-retention bench-rivals bench-tables

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: core .venv/installed  ## compile what changed (the first time: set up .venv as well)

clients: .venv/installed  ## get the clients of Node, Java and Go that `make test` else skips
	@$(PY) -m tests.support.clients.client_setup

demo: core .venv/linked  ## delayed messages through a broker that is killed, with a live view
	@$(PY) examples/demo.py

sanitized: build
	@$(PY) -m tests.system.fuzz.sanitized

check: build  ## style, types and the quick tests, in less than a minute
	@$(PYTEST) -m "not slow" $(STYLE_TESTS) tests/unit $(ARGS)

test: sanitized .venv/spark  ## all tests, in JOBS=n processes (ARGS="..." goes to pytest)
	@$(PYTEST) $(ARGS)

soak: sanitized  ## ROUNDS kills, CUTS power cuts, FILLS, STATES crashes, LIVES, DAYS, FUZZ s
	@$(PYTEST) tests/system/kill9 tests/system/replication tests/unit/store tests/unit/offsets \
		tests/system/fuzz tests/system/realdisk tests/system/clients/test_rebalances.py \
		tests/unit/retention/test_year.py tests/unit/replication/test_pair_schedules.py \
		tests/unit/timers/test_cron_rules.py --schedules $(SCHEDULES) \
		--lives $(LIVES) --days $(DAYS) --timers $(TIMERS) \
		--rounds $(ROUNDS) --power-cuts $(CUTS) --fills $(FILLS) --states $(STATES) \
		--fuzz-seconds $(FUZZ) --timeout 0 -o faulthandler_timeout=0

packages: build  ## build both distributions, install them, serve from there (ARGS="--keep dist")
	@$(PY) -m tests.support.packages.installation $(ARGS)

bench: build  ## how fast, beside Kafka, a mock broker and the raw machine (ARGS="--only lateness")
	@$(PY) -m perf.bench $(ARGS)

bench-attacks: build  ## what attacks take from a good client, in memory, time and records
	@$(PY) -m perf.attacks $(ARGS)

bench-check: build  ## has a ratio become worse than perf/baseline.json says?
	@$(PY) -m perf.check $(ARGS)

bench-cold: build  ## how late timers in memory are while 100,000 on the disk are due
	@$(PY) -m perf.cold $(ARGS)

bench-instructions: build  ## how many instructions a record costs (ARGS="--other ../old/.venv")
	@$(PY) -m perf.instructions $(ARGS)

bench-keys: build  ## what the index of keys costs a producer, and look-ups a second
	@$(PY) -m perf.keys $(ARGS)

bench-tables: build  ## how fast the log is read as tables, and by Spark beside Parquet
	@$(PY) -m perf.tables $(ARGS)

bench-connections: build  ## what a good client notices of a thousand bad ones
	@$(PY) -m perf.connections $(ARGS)

bench-curves: build  ## what records, partitions, connections and pending timers cost as they grow
	@$(PY) -m perf.curves $(ARGS)

bench-pending: build  ## answers about ten million pending timers, and a start with them
	@$(PY) -m perf.pending $(ARGS)

bench-recovery: build  ## how fast the log is written and a start is; memory of 10,000 queues
	@$(PY) -m perf.recovery $(ARGS)

bench-recycled: build  ## sync flush into recycled segments, new ones, and the disk alone
	@$(PY) -m perf.recycled $(ARGS)

bench-fail-over: build  ## how long clients wait when a master is killed, and when it hands over
	@$(PY) -m perf.fail_over $(ARGS)

bench-rivals: build  ## delayed records beside RocketMQ, Redis, PostgreSQL, NATS and beanstalkd
	@$(PY) -m perf.rivals $(ARGS)

bench-replication: build  ## throughput with a slave, and how fast one catches up
	@$(PY) -m perf.replication $(ARGS)

bench-retention: build  ## what producers notice of freeing, and what a carry costs
	@$(PY) -m perf.retention $(ARGS)

regenerate: build  ## write the generated tables, examples, golden files and pictures
	@$(PY) -m tests.support.docs.regenerate

lint: build  ## style, layers and types alone
	@$(PYTEST) $(STYLE_TESTS)

lock: .venv/installed  ## pin the newest versions that requirements*.in allow
	@as=; for set in dev build demo spark; do \
		[ $$set != spark ] || as="--constraint requirements-dev.txt \
			--constraint tests/system/spark/connector/constraints.txt"; \
		.venv/bin/pip-compile --quiet --upgrade --generate-hashes $$as \
		--allow-unsafe --strip-extras --no-header --no-emit-index-url --no-emit-trusted-host \
		--no-emit-find-links --no-emit-options \
		--output-file requirements-$$set.txt requirements-$$set.in || exit 1; done

clean:  ## remove what the build made, except .venv
	rm -rf build dist latermq.egg-info _core/*/*.so tests/support/compiled/*.so
	find appliance compat _core tests perf examples -name __pycache__ -exec rm -rf {} +

# The compiler needs two of the libraries. The others are installed while it works.
.venv/builder: requirements-build.txt
	@command -v $(PYTHON) >/dev/null || \
		{ echo "missing: Python 3.11 or newer; apt-get install python3" >&2; exit 1; }
	@$(PYTHON) .ci/preflight.py
	@echo "installing the pinned libraries into .venv and compiling (once, one to two minutes)"
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	@$(PIP_INSTALL) --require-hashes -r $<
	@touch $@

.venv/tools: requirements-demo.txt .venv/builder
	@$(PIP_INSTALL) --require-hashes -r $<
	@echo "installed the libraries"
	@touch $@

core: .venv/builder
	@$(PY) setup.py --quiet build_ext --inplace

.venv/linked: .venv/tools pyproject.toml requirements.in | core
	@PYTHONWARNINGS=ignore $(PIP_INSTALL) --no-build-isolation --no-deps -e .
	@touch $@  # the warnings are of each editable installation

# Not beside `linked`: one pip at a time.
.venv/installed: requirements-dev.txt .venv/linked
	@echo "installing the pinned tools for tests into .venv (once, about a minute)"
	@$(PIP_INSTALL) --require-hashes -r $<
	@touch $@

# Half a gigabyte, which the tests of Spark alone need; they are skipped without it.
.venv/spark: requirements-spark.txt .venv/installed
	@echo "installing Spark into .venv (once, about a minute)"
	@$(PIP_INSTALL) --require-hashes --no-build-isolation -r $<
	@touch $@
