# One command a job. `make` alone explains them.
#
# The environment is .venv. It is made again only when requirements/dev.txt, pyproject.toml or the Python behind it
# change; the stamp is written last, so an interrupted installation is simply done again.

SHELL      := /bin/bash
.SHELLFLAGS := -euo pipefail -c
VENV       := .venv
BIN        := $(VENV)/bin
STAMP      := $(VENV)/.installed
WORKERS    ?= 4
TESTS      ?= tests
BROKERS    ?= 1
RELEASES   ?= 3.9 4.0 4.3 4.4
MATRIX     := tests/broker tests/chaos/test_failpoints.py tests/chaos/test_parallel.py -m "not slow and not campaign"
CLIENTS    ?= 2.13.2 2.16.1
SPARKS     ?= 4.2.0 4.2.1
ON_SPARK   := tests/spark tests/structured_streaming tests/devbroker/test_spark_jars.py -m "not slow and not campaign"
UNIT       := tests/unit tests/test_layers.py tests/test_import_paths.py
USUAL      := -m "not planted and not campaign and not slow and not cluster"
ENGINE     ?= embedded
VERSION    ?= 0.1.0
PYTEST     := $(BIN)/pytest -n $(WORKERS) --dist loadgroup

.DEFAULT_GOAL := help
.PHONY: help env s3-server demo unit test lint format types campaign chaos cluster matrix clients sparks asan planted mutants soak day simulation schedules corpora bench docs site requirements images image dist sbom clean

help: ## This text
	@echo "kafka-eos: exactly-once Kafka pipelines. New here? Run 'make demo' (needs Python 3.11+ and Java 17+), then"
	@echo "read README.md. Before you propose a change: 'make lint types test', which is what CI runs."
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  TESTS=tests/unit make test     only some tests        WORKERS=2 make test     fewer at a time"
	@echo "  make demo ENGINE=spark         the same on a Spark cluster, with kills of driver and executors"

env: ## The Python environment (.venv), pinned by hash; all other jobs make it themselves
	@requirements/install.sh $(VENV) $(STAMP)

demo: env ## Start a Kafka, run a pipeline, kill it on purpose, rescale it, prove that nothing was lost or doubled
	@$(BIN)/kafka-eos demo --engine $(ENGINE)

s3-server:
	@requirements/s3-server.sh

unit: env ## The inner loop: what needs neither Java nor a broker, in a minute or two
	@$(PYTEST) -q $(USUAL) $(UNIT)

test: env s3-server ## Every guarantee once, without planted bugs and campaigns; starts a real Kafka and a real Spark itself
	@$(PYTEST) $(USUAL) $(TESTS)

lint: env ## Style, common mistakes and risks (ruff), the words of code and pages (docs/plain_words.py), secrets (docs/find_secrets.py)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python docs/plain_words.py
	@$(BIN)/python docs/find_secrets.py

format: env ## Let ruff repair what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: env ## Types (mypy --strict), the library and what users write with it
	@$(BIN)/mypy
	@$(BIN)/mypy tests/typing
	@$(BIN)/mypy docs/examples/*.py docs/examples/five_programs/*_kafka_eos.py

campaign: env s3-server ## The tests that `make test` leaves out: other settings, longer storms, every corruption; some hours
	@$(PYTEST) -m "(campaign or slow) and not cluster" $(TESTS)
	@$(PYTEST) --limits usual -m "not campaign and not slow" tests/contract tests/schedules
	@$(PYTEST) --limits tiny -m "not campaign and not slow" tests/unit
	@EXAMPLES=40 $(PYTEST) -m "not campaign and not slow" tests/unit/runtime tests/unit/embedded tests/contract/test_equal_or_rejected.py

chaos: env ## Kill real jobs at each named step, and again while they recover, on one broker or on BROKERS=3
	@$(PYTEST) -m chaos --brokers $(BROKERS) $(TESTS)

cluster: env ## A real job on three brokers, while they die, freeze, restart and hand over
	@$(PYTEST) tests/cluster

matrix: env ## The coordinator's answers and the main job on each release of Kafka that is supported: RELEASES
	@for release in $(RELEASES); do echo "Kafka $$release"; $(PYTEST) --release $$release $(MATRIX); done

clients: env ## The same with each end of the supported releases of Kafka's client: CLIENTS
	@for release in $(CLIENTS); do echo "confluent-kafka $$release"; \
	  other=$$(requirements/release.sh $(BIN)/python confluent-kafka $$release); PYTHONPATH=$$other $(PYTEST) $(MATRIX); done

sparks: env ## What runs on Spark with each end of its supported releases: SPARKS
	@for release in $(SPARKS); do echo "pyspark $$release"; \
	  other=$$(requirements/release.sh $(BIN)/python pyspark $$release); PYTHONPATH=$$other $(PYTEST) $(ON_SPARK); done

soak: env ## Kill at random under load for MINUTES (15), then check every output and audit; JOB=state-machine; adds a row to docs/soak.md
	@$(BIN)/python -m tests.chaos.soak --job $(or $(JOB),payments) --minutes $(or $(MINUTES),15)

day: env ## Two hours in production in twenty minutes (SPEED=6): one fault after the other, each with its alerts; adds a row to docs/production-day.md
	@$(BIN)/python -m tests.chaos.day --speed $(or $(SPEED),6)

asan: env ## The tests of kafka-eos-native and of Kafka readers and writers, with the module built for AddressSanitizer
	@native/asan.sh $(BIN)/python $(addprefix tests/unit/connectors/kafka/test_,native_queue.py native_sender.py \
	  kafka_reader.py kafka_writer.py record_headers.py)

planted: env ## Plant bugs in the engine; the suite must notice each one
	@$(PYTEST) -m planted tests/planted

mutants: env s3-server ## Small mistakes, one at a time, that a test must notice: all decisions of AREA (protocol) or FILE, or SAMPLE=300 SEED=1 of what loses rows
	@$(if $(SAMPLE),,EXAMPLES=3) $(BIN)/python -m tests.mutation $(if $(SAMPLE),--sample $(SAMPLE) --seed $(or $(SEED),1)) \
	  $(if $(FILE),--file $(FILE),$(if $(AREA)$(SAMPLE),$(if $(AREA),--area $(AREA)),--area protocol))

schedules: env ## Joins, windows, timers, sessions, tables, rules, requests, windows that expire, and the order of rows, under SEEDS (200) random schedules each
	@SEEDS=$(or $(SEEDS),200) $(PYTEST) -q tests/schedules

simulation: env ## The protocol under SEEDS (10000) random schedules with crashes; `make test` runs some hundred
	@$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),10000) --first $(or $(FIRST),0)

corpora: env ## Try public corpora of JSON, JSON Schema, CSV, Avro, Parquet and Protobuf, fetched from GitHub, and print counts; CORPORA="json csv" tries some
	@$(BIN)/python -m tests.corpora $(CORPORA)

bench: env ## Measure throughput and latency on this machine
	@$(BIN)/python -m benchmarks.run

site: env ## The documentation as a site for a browser, built without a network: dist/site
	@$(BIN)/python docs/build_site.py

docs: env ## Redraw the tables that the code makes, then compare the documents with it
	@$(BIN)/python docs/draw.py
	@$(BIN)/pytest tests/test_docs.py

PIN := $(BIN)/uv pip compile --quiet --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-package kafka-eos-native \
  --custom-compile-command "make requirements"
requirements: env ## Resolve and pin the dependencies again (asks the package index)
	@$(PIN) --upgrade --all-extras --output-file requirements/dev.txt pyproject.toml
	@$(PIN) --extra broker --extra spark --extra audit --extra object-store --extra postgres --extra parquet --extra s3 --extra registry --extra protobuf --extra delta --extra iceberg --extra http --extra otel --extra openlineage \
	  --constraint requirements/dev.txt \
	  --output-file requirements/run.txt pyproject.toml
	@echo uv | $(PIN) --constraint requirements/dev.txt --output-file requirements/uv.txt -
	@echo twine | $(PIN) --constraint requirements/dev.txt --output-file requirements/twine.txt -

dist: env ## Build the wheel and the sdist into dist/, check them, and try the wheel in a fresh environment; DEMO=1 runs the demo from it
	@requirements/dist.sh $(BIN)/python dist $(if $(DEMO),--demo)

images: ## Ask the registries for the digests of all base images: dist/images.env (needs docker with buildx)
	@requirements/images.sh dist/images.env

image: ## Build the image kafka-eos:$(VERSION) on the base that dist/images.env pins by digest; `make images` first
	@base=$$(sed -n 's/^PYTHON_IMAGE=//p' dist/images.env); [[ $$base == *@sha256:* ]]; \
	  docker build -f docker/Dockerfile --build-arg BASE=$$base -t kafka-eos:$(VERSION) .

sbom: env ## What runs, with versions and licenses: dist/sbom.cdx.json (CycloneDX) and dist/licenses.txt
	@$(BIN)/python requirements/sbom.py dist

clean: ## Remove what was built, and caches; the environment and downloaded jars stay
	@rm -rf {.,native}/build dist .mutants .mypy_cache .ruff_cache .pytest_cache .hypothesis {.,native}/*.egg-info
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
