# Tidemark's commands. `make help` lists them; each sets up what it needs first.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
# Images and services of builds set it. Each process would compile all modules that it loads: as long again as the load itself.
unexport PYTHONDONTWRITEBYTECODE

# The first that runs, looked for once and when it is needed; services/local/doctor.py says so if it does not fit. Name another: make PYTHON=/path/to/python3.12 …
PYTHON ?= $(eval PYTHON := $(or $(call runs,python3.11),$(call runs,python3.12),$(call runs,python3.13),$(call runs,python3.14),$(call runs,python3),$(call runs,python)))$(PYTHON)
runs = $(shell $(1) -c 'import sys; print(sys.executable)' 2>/dev/null)

VENV := .venv
BIN := $(VENV)/bin
# One stamp for each step of the set-up: a second run finds it and does nothing. Each lies in what it speaks for.
PACKAGES := $(VENV)/.packages-installed
JARS := .tidemark/kafka/.jars-verified
CLASSES := .tidemark/classes/.archived
COMPILED := $(VENV)/.readers-compiled
NEEDED := $(PACKAGES) $(COMPILED) $(JARS)
LOG := .tidemark/setup.log

# An environment that cannot be used is made anew: its Python is gone or does not fit, or the folder had another name, and the programs in it
# name that one.
FITS := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
STALE := $(shell [ ! -e $(VENV) ] || { $(BIN)/python -c '$(FITS)' && \
  { [ ! -e $(BIN)/tidemark ] || grep -qF "$$(pwd -P)/$(VENV)/" $(BIN)/tidemark; }; } 2>/dev/null || echo anew)

ALL := not (bench or long or browser)
PURE := not (kafka or spark or postgres or mongodb or e2e or slow or bench or long or browser)
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest
# More than there are cores: what waits for processes stands beside what computes (tests/conftest.py has the order). With three on two cores
# these had nothing to do for a tenth of the time, with four for a fiftieth. A worker that dies is told with its test, and another goes on
# with the rest. A test that its time limit's signal does not end (in machine code, in another thread) takes its worker along.
WORKERS ?= $(shell echo $$(($$(nproc) < 2 ? 3 : 4)))
SPREAD := -n $(WORKERS) --dist worksteal --max-worker-restart 8 -o faulthandler_timeout=1560 -o faulthandler_exit_on_timeout=true
# Of `make simulate`, and of `make property`.
SEEDS ?= 0-299
TIMES ?= 1

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(NEEDED) $(CLASSES) ## virtual environment, locked packages, the broker's jars; nothing if they are there

.PHONY: doctor
doctor: ## look for what a set-up needs: Python 3.11 to 3.14, Java 17 or newer, disk
	@if [ -z "$(PYTHON)" ]; then \
	  echo 'There is no Python here: install Python 3.11 to 3.14 (Debian and Ubuntu: apt-get install python3 python3-venv)' >&2; \
	  exit 1; fi
	@$(PYTHON) services/local/doctor.py check

# The locked pip comes first: that of an old Python takes twice the time. The lock has all that a package needs (a test holds that), and
# bytecode is written by whoever loads a module: most are never loaded.
.PHONY: anew
$(PACKAGES): requirements-build.lock requirements-dev.lock pyproject.toml $(STALE)
	@$(MAKE) doctor
	@mkdir -p .tidemark
	@echo 'Setting up: virtual environment and locked packages (about a gigabyte, some minutes the first time)'
	@{ { $(if $(STALE),false,[ -x $(BIN)/python ]) || $(PYTHON) -m venv --clear $(VENV); } && \
	   $(INSTALL) --require-hashes -r requirements-build.lock && \
	   $(INSTALL) --require-hashes --no-deps --no-compile --no-build-isolation -r requirements-dev.lock && \
	   $(INSTALL) --no-deps --no-build-isolation --editable .; \
	 } > $(LOG) 2>&1 || { $(PYTHON) services/local/doctor.py explain $(LOG) || { echo 'All that was printed: $(LOG)' >&2; exit 1; }; }
	@touch $@

$(COMPILED): $(PACKAGES) $(wildcard shared/compiled/*.py)
	@echo 'Setting up: readers and writers are compiled (a minute or two)'
	@$(BIN)/python -m tidemark.shared.compiled
	@touch $@

$(JARS): deploy/broker/jars.lock | $(PACKAGES)
	@echo 'Setting up: the jars of the Kafka broker (42 MiB)'
	@$(BIN)/python -m tidemark.services.local.jars
	@mkdir -p $(@D)
	@touch $@

$(CLASSES): $(NEEDED) services/local/archive.py spark_stages/archive.py spark_stages/session.py
	@echo 'Setting up: archives of the classes that the broker and Spark load, which halve the time of their starts'
	@mkdir -p $(@D); writers=; for package in tidemark.services.local tidemark.spark_stages; do \
	  { $(BIN)/python -m $$package.archive 2> $(@D)/$$package.log || \
	    { $(PYTHON) services/local/doctor.py explain $(@D)/$$package.log; exit 1; }; } & writers="$$writers $$!"; \
	done; for writer in $$writers; do wait $$writer || exit 1; done
	@touch $@

# A first demo needs no archives: they are written behind it, for the starts that follow.
.PHONY: demo
demo: $(NEEDED) ## a year of New York departures through all of it; results in out/demo/
	@$(BIN)/tidemark demo
	@$(MAKE) --silent setup

.PHONY: weather
weather: setup ## two streams joined: departures with the weather of their hour; results in out/weather/delays/
	@rm -rf out/weather
	@$(BIN)/python -m tidemark.deploy.pipelines.weather.data out/weather/data
	@DATA="$(CURDIR)/out/weather/data" OUT="$(CURDIR)/out/weather" $(BIN)/tidemark run deploy/pipelines/weather/pipeline.yaml --data out/weather/run

define EXAMPLE
@rm -rf out/$@
@$(BIN)/python -m tidemark.deploy.pipelines.$@.data out/$@/data
@DATA="$(CURDIR)/out/$@/data" OUT="$(CURDIR)/out/$@" $(BIN)/tidemark run deploy/pipelines/$@/pipeline.yaml --data out/$@/run
endef

.PHONY: sessions counts validation weblog
sessions: setup ## how long players stay: sessions by output time; results in out/sessions/lengths/
	$(EXAMPLE)
counts: setup ## clicks of each user, and of all: two windows in a chain; results in out/counts/
	$(EXAMPLE)
validation: setup ## readings that pass a schema, and dead letters; results in out/validation/
	$(EXAMPLE)
weblog: setup ## an access log as traffic by section; results in out/weblog/traffic/
	$(EXAMPLE)

.PHONY: lint
lint: $(PACKAGES) ## ruff, its formatter, mypy strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict

.PHONY: test
test: setup lint ## all checks and all tests (ARGS='-k name' narrows the tests)
	$(PYTEST) -m '$(ALL)' $(SPREAD) $(ARGS)

.PHONY: test-fast
test-fast: setup ## the tests that need neither broker nor Spark
	$(PYTEST) -m '$(PURE)' $(SPREAD) $(ARGS)

.PHONY: property
property: setup ## all examples that property tests ask for (TIMES=20: so many times more), new ones each time, and what else `.ci/run` takes a share of
	env -u CI EXAMPLES_TIMES=$(TIMES) $(PYTEST) tests/property $$(grep -rl 'tests.harness.share import' tests/contract tests/golden tests/integration tests/outages tests/spark tests/unit) -m 'not (bench or long or browser)' $(SPREAD) $(ARGS)

.PHONY: cases
cases: setup ## whole pipelines: every case on the local engine and on Spark
	@mkdir -p out
	@for engine in local spark; do \
	  $(BIN)/tidemark process --cases tests/golden/process/cases.jsonl --out out/cases-$$engine.jsonl --engine $$engine && \
	  $(BIN)/python -m tests.harness.process_cases tests/golden/process/cases.jsonl out/cases-$$engine.jsonl || exit 1; done

.PHONY: manual
manual: setup ## the reference pages of docs/ anew, from the code
	@$(BIN)/python -m tidemark.deploy.manual docs

.PHONY: docs
docs: manual ## the manual as pages, in out/manual/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet && echo 'out/manual/index.html'

.PHONY: cliffs
cliffs: setup ## expressions, pipelines and accumulators drawn at random (ARGS='SEED NUMBER'), beside what their parts and stages cost: the steepest
	$(BIN)/python -m tests.harness.bench.cliffs $(ARGS)
	$(BIN)/python -m tests.harness.bench.pipeline_cliffs $(ARGS)
	$(BIN)/python -m tests.harness.bench.accumulator_cliffs $(ARGS)

.PHONY: growth
growth: setup ## how costs grow with fields, items, depths, texts, stages and rows, four times as many each time (ARGS='fields'): the steep ones
	$(BIN)/python -m tests.harness.bench.growth $(ARGS)

.PHONY: bench
bench: setup ## what it carries on this machine, with machine, versions and command
	$(PYTEST) -m bench -s --timeout 0 $(ARGS)

.PHONY: bench-peers
bench-peers: setup ## Flink, Kafka Streams and Spark beside Tidemark on the same rows (ARGS='--shape map --partitions 4'); fetches 300 MiB; an hour
	$(BIN)/python -m tests.harness.bench.peers --json out/bench/peers.json $(ARGS)

.PHONY: hostile
hostile: setup ## damaged documents, formats, frames and records, INPUTS=1000000 of them from SEED=0 on
	$(BIN)/python -m tests.harness.hostile $(or $(INPUTS),1000000) $(or $(SEED),0)

.PHONY: fuzz
fuzz: setup ## REST by its own description, and damaged requests, REQUESTS=20000 each; what is found is printed
	$(BIN)/python -m tests.harness.rest $(or $(REQUESTS),20000) $(or $(SEED),0)
	$(BIN)/python -m tests.harness.raw_http $(or $(REQUESTS),20000) $(or $(SEED),0)

.PHONY: chaos
chaos: setup ## real processes under kills, pauses, cuts and full disks (MINUTES=60, ARGS='--seed N'); what struck lies in out/chaos/
	$(BIN)/python -m tests.harness.chaos --minutes $(or $(MINUTES),60) $(ARGS)

.PHONY: drawn
drawn: setup ## pipelines drawn at random as JOBS=100 jobs of a real installation, from SEED=1 on, beside one process; some 4 s each
	$(BIN)/python -m tests.harness.drawn_jobs $(or $(SEED),1) $(or $(JOBS),100)

.PHONY: audits
audits: setup ## jobs drawn at random in one process, STORIES=40 from SEED=1 on, audited, forged and audited again: what is checked, and why not; some 3 s each
	$(BIN)/python -m tests.harness.drawn_audits $(or $(SEED),1) $(or $(STORIES),40)

.PHONY: upgrades
upgrades: setup ## such jobs, JOBS=24 from SEED=1 on, begun by an older version (FROM=COMMIT), which ends or is killed: this one goes on with them (HOW=staged: with rows staged for tables and files)
	$(BIN)/python -m tests.harness.drawn_jobs.upgraded $(or $(FROM),$(error name the older version: FROM=COMMIT)) $(or $(SEED),1) $(or $(JOBS),24) 4 $(HOW)

.PHONY: topics
topics: setup ## what people and retention do to topics, drawn at random (SEED=1 JOBS=20), under jobs of a real installation; some 30 s each
	$(BIN)/python -m tests.harness.drawn_topics $(or $(SEED),1) $(or $(JOBS),20)

.PHONY: databases
databases: setup ## PostgreSQL that others use: drawn tables, writers, ALTERs and breaks, read as changes and written by $merge, COUNT=20 from SEED=1 on; some 5 s each
	$(BIN)/python -m tests.harness.databases $(or $(SEED),1) $(or $(COUNT),20)

.PHONY: lasting
lasting: setup ## failures of Kafka, databases, servers, registries and files, COUNT=40 drawn from SEED=1 on: those that last end a job, others pass; some 8 s each
	$(BIN)/python -m tests.harness.lasting $(or $(SEED),1) $(or $(COUNT),40)

.PHONY: worlds
worlds: setup ## wall clocks that are set and networks that are bad, drawn at random (SEED=1 COUNT=10 ARGS='--only "clock broker"'), under jobs of a real installation; some 2 minutes each
	$(BIN)/python -m tests.harness.worlds --seed $(or $(SEED),1) --count $(or $(COUNT),10) $(ARGS)

.PHONY: readers
readers: setup ## what file sinks write, drawn at random (COUNT=20 from SEED=1 on, FORM=csv), as pandas, Spark, polars, DuckDB and others read it; some 15 s each
	$(BIN)/python -m tests.harness.readers $(or $(SEED),1) $(or $(COUNT),20) $(FORM)

.PHONY: operated
operated: setup ## what operators do, drawn at random (SEED=1 COUNT=5 ACTS=40), right and wrong, on an installation that stays; some 4 minutes each
	$(BIN)/python -m tests.harness.operated $(or $(SEED),1) $(or $(COUNT),5) $(or $(ACTS),40)

.PHONY: visits
visits: setup ## what people do at the console, drawn at random (SEED=1 COUNT=10 STEPS=60; ARGS=--browser: in Chromium), before installations of every shape; some 10 s each
	$(BIN)/python -m tests.harness.visits $(or $(SEED),1) $(or $(COUNT),10) $(or $(STEPS),60) $(ARGS)

.PHONY: machines
machines: setup ## the command in environments drawn at random, COUNT=40 from SEED=1 on: variables, bounds, folders, networks; some 20 s each
	$(BIN)/python -m tests.harness.machines $(or $(SEED),1) $(or $(COUNT),40)

.PHONY: hosts
hosts: setup ## programs drawn at random around `import tidemark`, COUNT=40 from SEED=1 on: threads, loops, forks, settings (ARGS=--run: each runs a pipeline, too)
	$(BIN)/python -m tests.harness.hosts $(or $(SEED),1) $(or $(COUNT),40) $(ARGS)

UV := .tidemark/uv
# Resolves packages to their lowest versions, too; for environments alone, not a part of the product.
$(UV)/bin/uv: | $(PACKAGES)
	@$(BIN)/python -m venv $(UV) && $(UV)/bin/pip install --quiet --disable-pip-version-check uv==0.13.9 || { rm -rf $(UV); exit 1; }

.PHONY: environments
environments: setup $(UV)/bin/uv ## other versions of what the wheel asks for, on each Python here, drawn at random (SEED=1 COUNT=4 ARGS='--resolution lowest'); some 15 minutes each
	$(BIN)/python -m tests.harness.environments $(or $(SEED),1) $(or $(COUNT),4) --uv $(UV)/bin/uv $(ARGS)

.PHONY: many
many: setup ## PROCESSORS=30 small ones in one installation: time until all have committed, processes, memory
	$(BIN)/python -m tests.harness.many $(or $(PROCESSORS),30)

.PHONY: long
long: setup ## tests that take minutes each: a year of departures under kills, memory under a slow target, workers that come and go
	$(PYTEST) -m long --timeout 0 --ignore tests/outages $(ARGS)

AXE := .tidemark/axe
AXE_DIGEST := 39bed7d72308f6d620789c169d699bfd7e8da80f65b545821a6b2215c3e83107
# Finds what keeps a page from readers of screens and keyboards; for tests alone, not a part of the product.
$(AXE)/package/axe.min.js:
	@mkdir -p $(AXE) && cd $(AXE) && npm pack --silent axe-core@4.11.0 > /dev/null && echo '$(AXE_DIGEST)  axe-core-4.11.0.tgz' | sha256sum --check --quiet
	@tar -xzf $(AXE)/axe-core-4.11.0.tgz -C $(AXE) package/axe.min.js package/LICENSE && touch $@

SBOM := .tidemark/sbom
# Reads lock files; for the bill alone, not a part of the product.
$(SBOM)/bin/cyclonedx-py: | $(PACKAGES)
	@$(BIN)/python -m venv $(SBOM) && $(SBOM)/bin/pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0 || { rm -rf $(SBOM); exit 1; }

.PHONY: sbom
sbom: $(SBOM)/bin/cyclonedx-py ## a bill of materials (CycloneDX 1.6) of the packages that the product is locked to: out/sbom.json
	@mkdir -p out && $(SBOM)/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible -o out/sbom.json requirements.lock && echo out/sbom.json

.PHONY: browser
browser: setup $(AXE)/package/axe.min.js ## the console in Chromium (apt-get install chromium; npm): axe, keys, a phone's width; pictures in out/console/
	$(PYTEST) -m browser tests/browser $(ARGS)

.PHONY: simulate
simulate: setup ## the whole system on virtual time, with faults; SEEDS=FROM-TO (ARGS='--shrink --trace' shows how a seed fails)
	$(BIN)/python -m tests.harness.simulation $(SEEDS) $(ARGS)

.PHONY: mutants
mutants: setup ## take each rule of the protocol out of the code and see a test fail (ARGS='S3' one rule; ARGS=--reals with broker and Spark)
	$(BIN)/python -m tests.harness.mutants $(ARGS)

.PHONY: outages
outages: setup ## everything a processor needs is away for ten minutes and for three hours of virtual time, one after the other
	$(PYTEST) -m long tests/outages $(ARGS)

.PHONY: kafka-versions
kafka-versions: setup ## windows, a join and a filter on brokers of other versions (VERSIONS='2.8.2 3.9.1'; all) and settings (SEEDS=1-9); a minute each
	$(BIN)/python -m tests.harness.clusters $(VERSIONS) --seeds $(or $(SEEDS),1-9)

.PHONY: brokers
brokers: setup ## what happens to a cluster of three brokers, drawn at random (SEED=1 JOBS=10 ACT=frozen), under jobs of a real installation; some 80 s each
	$(BIN)/python -m tests.harness.brokers $(or $(SEED),1) $(or $(JOBS),10) $(ACT)

.PHONY: kafka-clients
kafka-clients: setup ## what clients of Go, Node, Rust, Java and C write, as sources read it (SEEDS=1-200); fetches and builds the clients first
	$(BIN)/python -m tests.harness.clients build
	$(BIN)/python -m tests.harness.clients read --seeds $(or $(SEEDS),1-40)
	$(BIN)/python -m tests.harness.clients jobs --seeds $(or $(SEEDS),1-40)

.PHONY: age
age: setup ## what it costs to lead, restore and list processors that committed each second for a year (COMMITS=31500000 PROCESSORS=50)
	$(BIN)/python -m tests.harness.ageing --commits $(or $(COMMITS),31500000) --processors $(or $(PROCESSORS),50)

.PHONY: fresh
fresh: setup ## the demo in a fresh Debian 12, 13 and what becomes 14, made by debootstrap (root; ARGS='--suite trixie make test')
	$(BIN)/python -m tidemark.deploy.verification.fresh $(ARGS)

.PHONY: format
format: setup ## let ruff lay out the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only .

.PHONY: keeping
keeping: setup ## objects, records and files that are kept after so many checkpoints (COMMITS=1000,100000: hours of a core)
	$(BIN)/python -m tests.harness.keeping --commits $(or $(COMMITS),1000,5000)

# No address, no folder of this machine: where packages come from is the installer's business.
COMPILE := env -u PIP_FIND_LINKS $(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-header \
  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host

.PHONY: lock
lock: setup ## write the lock files anew after a change of dependencies (ARGS=--upgrade raises all)
	$(COMPILE) $(ARGS) --output-file requirements.lock pyproject.toml
	$(COMPILE) $(ARGS) --extra dev --constraint requirements.lock --output-file requirements-dev.lock pyproject.toml
	grep -E '^(pip|setuptools|wheel)==' requirements-dev.lock | cut -d ' ' -f 1 > .tidemark/build.in
	$(COMPILE) --no-annotate --output-file requirements-build.lock .tidemark/build.in

.PHONY: clean
clean: ## remove what tests and the demo wrote; data of running jobs stay
	rm -rf out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse metastore_db derby.log
	find services shared spark_stages deploy tests -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

.PHONY: distclean
distclean: clean ## remove the set-up as well
	rm -rf $(VENV) .tidemark/kafka .tidemark/classes *.egg-info
