# Verbs of the project. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
PYTEST := $(PY) -m pytest -q
# A test that fails is run once more, in a process of its own where it waits for ever.
AGAIN := --reruns 1
# None of Spark's takes as long as five minutes.
SPARK_AGAIN := -n 1 $(AGAIN) -o faulthandler_timeout=300
ARGS ?=
SECONDS ?= 10
ROUNDS ?= 10
EVENTS ?= 1000
SEED ?= 1
COUNT ?= 200
SEEDS ?= 1000000
KILLS ?= 100
SPARKS ?= 4.0 4.1 4.2
REQUESTS ?= 1000000
READY ?= 1
# Tests wait for clients and disks for more than half of their time.
WORKERS ?= $(shell echo $$((5 * $$(nproc) / 2)))
LANES ?= $(shell nproc)

# Where no bytecode is kept, each process of the tests compiles what it imports: all tests, and under
# the sanitizers the whole broker.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit("pyxbroker: Python 3.10 or newer is needed, this is " \
	    + sys.version.split()[0] + "; set PYTHON=...") if sys.version_info < (3, 10) else None'
	@echo 'pyxbroker: step 1 of 4 of a first build: the environment $(VENV)'
	$(PYTHON) -m venv $(VENV)

# The editable install brings the libraries and .venv/bin/pyxbroker. It is done again only when
# what it depends on changes; the extension modules are built in place by `build` itself, and the
# bytecode, as an installation has it: where Python may not write it, each start would compile.
$(VENV)/.installed: pyproject.toml setup.py | $(PY)
	@echo 'pyxbroker: step 2 of 4: the tools of the build, from PyPI'
	$(PY) -m pip install -q --disable-pip-version-check \
	    'setuptools>=77' 'Cython>=3.1' 'grpcio-tools>=1.60'
	@echo 'pyxbroker: step 3 of 4: the libraries that a broker imports'
	PYXBROKER_MODULES=none $(PY) -m pip install -q --disable-pip-version-check \
	    --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.installed
	@echo 'pyxbroker: the tools of tests and linters, from PyPI'
	PYXBROKER_MODULES=none $(PY) -m pip install -q --disable-pip-version-check \
	    --no-build-isolation -e '.[dev]'
	@touch $@

# PySpark is 450 MB, so it comes when its tests are run for the first time.
$(VENV)/.spark: pyproject.toml | $(VENV)/.dev
	@echo 'pyxbroker: PySpark, 450 MB from PyPI'
	PYXBROKER_MODULES=none $(PY) -m pip install -q --disable-pip-version-check \
	    --no-build-isolation -e '.[spark]'
	@touch $@

.PHONY: build
build: $(VENV)/.installed ## make .venv and build in place; only what changed is built again
	$(if $(wildcard src/pyxbroker/_native.*.so),,@echo 'pyxbroker: step 4 of 4: the modules; one to three minutes')
	@$(PY) setup.py -q build_ext --inplace
	@$(PY) -m compileall -q src/pyxbroker spark

.PHONY: dev
dev: $(VENV)/.dev build ## build, and install the tools of tests and linters

.PHONY: run
run: build ## build and serve on 6650 and 8080 in the foreground (ARGS='--data DIR ...')
	@exec $(BIN)/pyxbroker standalone $(ARGS)

# Everything that a change has to pass. Peers that are missing are failures, not skips. A test that
# fails is run once more, and told with what it said: what fails once is most often a test that a
# busy machine gave no time, and is looked for all the same. Spark's tests go on beside all others,
# whose closing line comes last.
.PHONY: test
test: goclient java javarecords $(VENV)/.spark $(VENV)/.docs ## all tests, less than half an hour
	@$(MAKE) --no-print-directory --output-sync=target -j2 spark others
	@tail -n 1 build/tests.txt

.PHONY: others
others: dev
	@$(MAKE) --no-print-directory --output-sync=target -j$(LANES) parts
	@$(MAKE) --no-print-directory --output-sync=none most

# What it says is shown while it says it.
.PHONY: most
most: dev
	@bash -o pipefail -c "$(PYTEST) -n $(WORKERS) --dist worksteal $(AGAIN) \
	    -m 'not minutes and not spark' torture compat_tests tests bench/micro | tee build/tests.txt"

# What computes beside what waits for disks and processes, the longest first. Fuzz and torture make
# the same choices each time here: what fails is the change. New choices are for each by hand.
# How soon a broker is ready again is for `make torture`, with the machine to itself.
.PHONY: parts
parts: ARGS = --seed $(SEED)
parts: READY = 10
parts: fuzz asanshort torture tsanshort native lint benchshort site

.PHONY: quicktest
quicktest: dev ## unit tests that start no process and take no time, one to two minutes
	$(PYTEST) -n $$((2 * $$(nproc))) -m 'not interop and not slow and not spark and not process and not long' tests

.PHONY: native
native: dev ## the C tests of the storage under ASan and UBSan
	bash tests/native/build.sh asan

.PHONY: compat
compat: dev goclient java ## real clients against a real process (BROKER=apache or pulsar-lite: against a peer)
	$(PYTEST) -m 'not spark' compat_tests

# One process at a time: a JVM and its Python workers want both cores. The process is a worker of
# pytest, which another one follows where a client hangs in it.
.PHONY: spark
spark: dev $(VENV)/.spark ## PySpark's source, sink and jobs against a real process (wants Java 17; fetches 450 MB)
	$(PYTEST) $(SPARK_AGAIN) -m 'spark and not minutes' compat_tests torture tests/test_spark_*.py

# Each is found before the one of the environment, which has all else.
build/pyspark-%: | $(VENV)/.dev
	$(PY) -m pip install -q --disable-pip-version-check --no-compile --target $@.part 'pyspark==$*.*'
	@mv $@.part $@

.PHONY: sparkversions
sparkversions: dev $(VENV)/.spark $(SPARKS:%=build/pyspark-%) ## the connector with older PySparks (SPARKS="4.0 4.1 4.2"; fetches 450 MB each)
	@for version in $(SPARKS); do echo "PySpark $$version"; \
	    PYTHONPATH="$(CURDIR)/build/pyspark-$$version:$$PYTHONPATH" \
	    $(PYTEST) $(SPARK_AGAIN) -m 'spark and not minutes' compat_tests \
	    --ignore compat_tests/test_spark_pipelines.py || exit 1; done

.PHONY: sparkcopy
sparkcopy: dev $(VENV)/.spark ## what of Spark takes minutes; KILLS (100) of queries, workers and the broker while it copies
	$(PYTEST) -m 'spark and minutes' compat_tests
	$(PY) -m torture.spark_copy --kills $(KILLS) --verbose

.PHONY: goclient
goclient: ## the program that drives Pulsar's Go client for compat (wants Go; a minute from nothing)
	@$(PYTHON) -m harness.go_build

.PHONY: java
java: ## the programs that drive Pulsar's Java client and pulsar-admin for compat (want a JDK 17, Maven; fetch 130 MB)
	@$(PYTHON) -m harness.java_build javaclient javaadmin

.PHONY: javarecords
javarecords: ## the program that reads records with Apache Pulsar's classes (wants a JDK 17, Maven; fetches 25 MB)
	@$(PYTHON) -m harness.java_build javarecords

.PHONY: interop
interop: dev javarecords ## what needs a real ZooKeeper or another peer
	$(PYTEST) -m interop tests

.PHONY: fuzz
fuzz: dev ## every fuzz target for SECONDS (10) seconds (ARGS='--seed N')
	$(PY) tests/fuzz/run.py --seconds $(SECONDS) $(ARGS)
	$(PY) tests/fuzz/sequences.py --seconds $(SECONDS) $(ARGS)

.PHONY: mutants
mutants: dev ## COUNT (200) bugs by SEED (1), planted in copies of the tree: do the tests notice? (ARGS='--only near')
	PYTHONPATH=tests $(PY) -m mutants --seed $(SEED) --count $(COUNT) $(ARGS)

.PHONY: torture
torture: dev ## ROUNDS (10) each of kills, power cuts, disk errors, flipped bits, each time ready in READY (1) s; EVENTS (1000) of a key storm (ARGS='--seed N')
	$(PY) -m torture.run --kill-rounds $(ROUNDS) --cut-rounds $(ROUNDS) \
	    --error-rounds $(ROUNDS) --flip-rounds $(ROUNDS) --ready-limit-s $(READY) $(ARGS)
	$(PY) -m torture.sync_order
	$(PY) -m torture.key_shared --events $(EVENTS) $(ARGS)

.PHONY: simulate
simulate: dev ## SEEDS (1000000) schedules of a ledger among model bookies, and of transactions (ARGS='--first N')
	$(PY) tests/simulate_ledger.py --seeds $(SEEDS) $(ARGS)
	$(PY) tests/simulate_transactions.py --seeds $(SEEDS) $(ARGS)

.PHONY: bookkeeper
bookkeeper: dev ## ROUNDS (10) by SEED (1) of faults of Apache bookies, ZooKeeper, links and the broker (root; ARGS='--broker apache')
	$(PY) -m torture.bookkeeper --rounds $(ROUNDS) --seed $(SEED) --verbose $(ARGS)

.PHONY: brokers
brokers: dev ## ROUNDS (10) by SEED (1) of faults of three brokers and their links, with Apache bookies (root; ARGS='--broker apache' or '--figures kill')
	$(PY) -m torture.brokers --rounds $(ROUNDS) --seed $(SEED) --verbose $(ARGS)

.PHONY: exactlyonce
exactlyonce: dev ## ROUNDS (10) by SEED (1) of exactly-once processing with transactions, workers and broker killed (ARGS='--cut' or '--brokers 3')
	$(PY) -m torture.transactions --rounds $(ROUNDS) --seed $(SEED) --verbose $(ARGS)

.PHONY: ledgerscopy
ledgerscopy: dev $(VENV)/.spark ## `ledgers copy` of 1,000 topics and 1,000,000 messages, killed five times, and audited (ARGS='--topics N --messages N')
	$(PY) -m torture.ledgers_copy --seed $(SEED) $(ARGS)

.PHONY: reststorm
reststorm: dev ## REQUESTS (1000000) fuzzed requests to REST by SEED (1), beside a polite client
	$(PY) -m torture.rest_storm --requests $(REQUESTS) --seed $(SEED)

.PHONY: bench
bench: dev ## micro-benchmarks, then side by side with the peers (ARGS='--figure ...')
	$(PYTEST) --benchmark-enable --benchmark-only bench/micro
	$(PY) -m bench.run $(ARGS)

.PHONY: benchshort
benchshort: dev ## the end-to-end benchmark of pyxbroker alone, short
	$(PY) -m bench.run --short

.PHONY: benchcluster
benchcluster: dev ## a broker on ZooKeeper and three of Apache's bookies, ours beside Apache's (ARGS='--short')
	$(PY) -m bench.cluster $(ARGS)

.PHONY: benchbrokers
benchbrokers: dev ## three brokers of a cluster: many topics, or balance (ARGS='--figure balance')
	$(PY) -m bench.brokers $(ARGS)

# A second build beside the usual one; Python itself is not instrumented, so libasan comes first.
ASAN_PYTEST := LD_PRELOAD="$$(gcc -print-file-name=libasan.so)" ASAN_OPTIONS=detect_leaks=0 \
    UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 PYTHONPATH=build/asan \
    $(PYTEST) -s -m 'not interop and not slow and not spark'
# Of each compiled module at least one: two minutes on two cores.
COMPILED_TESTS := $(addprefix tests/test_,$(addsuffix .py,ackset add_stats avro_columns buffers commands \
    confirmed_runs connection delayed dispatch dispatch_models entry entry_columns frames hostile_records \
    key_shared latest_messages load_generator long_commands metric_lines policy_checks quorum remote_bookie selectors stalls storage tls \
    turn without_memory))

.PHONY: asan-build
asan-build: dev
	PYXBROKER_SANITIZE=address,undefined $(PY) setup.py -q build \
	    --build-lib build/asan --build-temp build/asan-objects

.PHONY: asan
asan: asan-build ## unit tests with every extension module under ASan and UBSan
	$(ASAN_PYTEST) tests

.PHONY: asanshort
asanshort: asan-build ## of those, the tests of what is compiled
	$(ASAN_PYTEST) -n auto --dist worksteal $(COMPILED_TESTS)

.PHONY: tsan
tsan: dev ## the C tests of the storage under TSan
	bash tests/native/build.sh tsan

.PHONY: tsanshort
tsanshort: dev ## those, with a tenth of the kills and power cuts
	POWER_CUTS=6 bash tests/native/build.sh tsan

# A stub describes what Python code uses of a module, which has more for other modules in Cython.
STUBTEST := $(PY) -m mypy.stubtest --concise --ignore-missing-stub --ignore-disjoint-bases \
    --mypy-config-file pyproject.toml --allowlist tests/stubtest_allowlist.txt \
    $(patsubst src/pyxbroker/%.pyi,pyxbroker.%,$(wildcard src/pyxbroker/*.pyi))

.PHONY: lint
lint: dev ## ruff, mypy, stubtest, cython-lint, gofmt and go vet, and our C with warnings as errors
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(STUBTEST)
	PATH="$(CURDIR)/$(BIN):$$PATH" cython-lint src/pyxbroker
	$(PY) -m harness.go_build --lint
	PYXBROKER_WERROR=1 PYXBROKER_MODULES=_native $(PY) setup.py -q build_ext \
	    --build-lib build/lint --build-temp build/lint-objects

.PHONY: tidy
tidy: dev ## the house rules: arrows between the rooms, codes, words; and a list of what is long
	$(PYTEST) tests/test_tidy.py tests/test_native_arrows.py
	@$(PY) tests/sizes.py

$(VENV)/.docs: pyproject.toml | $(VENV)/.installed
	@echo 'pyxbroker: the builder of the site, from PyPI'
	PYXBROKER_MODULES=none $(PY) -m pip install -q --disable-pip-version-check \
	    --no-build-isolation -e '.[docs]'
	@touch $@

.PHONY: docs
docs: pages site ## write the pages that come from tables, then the site of all pages in build/site

# A link that leads nowhere, or a page without a place in the navigation, is an error.
.PHONY: site
site: $(VENV)/.docs ## the site of docs/ in build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: pages
pages: build ## write the pages and files that come from tables: settings, policies, REST
	@mkdir -p conf
	$(BIN)/pyxbroker config --markdown > docs/configuration.md
	$(BIN)/pyxbroker config --sample > conf/standalone.conf
	$(PY) -m pyxbroker.policies.page > docs/policies.md
	$(PY) -m pyxbroker.admin.documents > docs/rest.md
	$(PY) -m pyxbroker.admin.documents docs/compatibility.md

.PHONY: package
package: dev ## sdist and wheel are whole and start, on the oldest and the newest Python too
	$(PYTEST) --durations=5 tests/test_package.py

.PHONY: wheel
wheel: dev ## sdist, and wheels of all platforms and Pythons, in dist/ (ARGS='--python 3.11 --platform manylinux_2_28_x86_64')
	$(PY) -m harness.wheels $(ARGS)

.PHONY: clean
clean: ## remove what was built (.venv and data stay)
	rm -rf build dist src/*.egg-info src/pyxbroker/*.so src/pyxbroker/proto/descriptors.bin src/pyxbroker/commit.txt
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks $(VENV)/.installed $(VENV)/.dev $(VENV)/.spark $(VENV)/.docs
	find src spark tests compat_tests torture bench harness -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
