# make demo and make test need Python 3.11 or newer with venv, and nothing else.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# Where it is set, everything is installed in the versions of this file, for example
# make VENV=.venv-locked REQUIREMENTS=requirements/locked.txt test
REQUIREMENTS ?=

# pytest keeps what it compiles from test files; otherwise each run compiles them again, in each worker.
export PYTHONDONTWRITEBYTECODE :=

# One worker for each processor; an idle worker takes over tests of a busy one.
PARALLEL := -n auto --dist worksteal

.PHONY: demo test test-all test-slow lint bench compiled test-compiled compiled-wheel test-installed interop interop-tshark interop-rxe live bench-rxe bench-inject bench-fuzz bench-fabric pages docs wheel fuzz-readers soak test-pythons lock audit release clean

# What `make demo` proposes to try next; tests/test_demo.py runs them.
NEXT = 'flows captures/rnr-multi-packet.pcap           the connections of a capture, worst first' \
  'check captures/rnr-multi-packet.pcap           packets that break the rules of the protocol' \
  'report captures/chaos.b.pcap -o report.html    a page with plots' \
  'run one-lost-packet                            the same loss between two emulated devices' \
  'drill conformance/acks                         conformance scripts'

demo: $(VENV)/run.stamp
	@echo '$$ ibwire explain captures/drop-one-middle.b.pcap'
	@$(BIN)/ibwire explain captures/drop-one-middle.b.pcap
	@echo 'That was a real capture of Linux Soft-RoCE. Try next:'
	@printf '  $(BIN)/ibwire %s\n' $(NEXT)
	@echo 'Your own capture, step by step: docs/tutorials/first-capture.md'

# All tests except those marked slow, with an eighth of the examples of each property.
test: $(VENV)/test.stamp
	$(BIN)/pytest -q $(PARALLEL) -m 'not slow' --hypothesis-profile=quick

# Every test, with 100 examples.
test-all: $(VENV)/test.stamp
	$(BIN)/pytest -q $(PARALLEL)

# What `make test` leaves out: slow tests, and those whose examples are drawn with 100 of them.
test-slow: $(VENV)/test.stamp
	$(BIN)/pytest -q $(PARALLEL) -m 'slow or hypothesis'

lint: $(VENV)/test.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Side by side with tshark, Scapy and Construct; tshark is skipped where it is missing.
bench: $(VENV)/test.stamp
	$(BIN)/python tests/bench/compare.py
	$(BIN)/python tests/bench/emulator.py

# Networks of ns-3 HPCC with real packets, figure by figure, ten minutes; then the speed of networks.
bench-fabric: $(VENV)/test.stamp
	PYTHONPATH=tests $(BIN)/python tests/bench/fabric_truth.py
	$(BIN)/python tests/bench/fabric.py

# A copy of ibwire in build/compiled with the hottest modules compiled by mypyc; needs a C compiler.
compiled: $(VENV)/test.stamp
	$(BIN)/python tests/bench/compiled.py

# Tests on a compiled wheel: those of the packages that are known to pass there. A test that inherits
# from a compiled class, or replaces one of its methods, cannot and is skipped; so are mutants.
COMPILED_TESTS ?= tests/base/test_compiled.py $(addprefix tests/,rc fabric cm replay scenario drill verbs tap \
  capture dissect connections rules diagnosis impair fuzz strategies traffic lab sm cli)
test-compiled: compiled-wheel
	$(MAKE) test-installed

# The two halves of it: compiling takes minutes of one processor, the tests take all of them.
compiled-wheel: $(VENV)/test.stamp
	rm -rf build/compiled-wheel build/installed
	IBWIRE_COMPILE=1 IBWIRE_COMPILE_LEVEL=0 $(BIN)/pip wheel -q --no-deps -w build/compiled-wheel .
	$(BIN)/pip install -q --no-deps --target build/installed build/compiled-wheel/*.whl

test-installed: $(VENV)/test.stamp
	PYTHONPATH=$(CURDIR)/build/installed $(BIN)/python -P -m ibwire --version | grep compiled
	PYTHONPATH=$(CURDIR)/build/installed $(BIN)/pytest -q $(PARALLEL) -m 'not slow' \
	  --hypothesis-profile=quick --override-ini 'pythonpath=tests' $(COMPILED_TESTS)

# With implementations of others: tshark, and Linux's Soft-RoCE.
interop: interop-tshark interop-rxe

# Building and sending beside tcpreplay and Scapy, and the tap: needs root and tcpreplay.
bench-inject: $(VENV)/test.stamp
	@command -v tcpreplay >/dev/null || { echo 'make bench-inject needs tcpreplay (Debian: apt-get install tcpreplay)'; exit 1; }
	$(BIN)/python tests/bench/build.py
	$(BIN)/python tests/bench/inject.py
	$(BIN)/python tests/bench/tap.py

# Attacks a second, beside the generators of Scapy and boofuzz (if it is there); then what is
# found of the mutants, which takes half an hour.
bench-fuzz: $(VENV)/test.stamp
	$(BIN)/python tests/bench/fuzz.py
	PYTHONPATH=tests $(BIN)/python tests/bench/fuzz_score.py

# Agreement with tshark, field by field, and opensm with its tools on an emulated fabric: the same tests
# as in `make test-all`, but tshark must be there. What else is missing is said by the tests.
interop-tshark: $(VENV)/test.stamp
	@command -v tshark >/dev/null || { echo 'make interop needs tshark (Debian: apt-get install tshark)'; exit 1; }
	$(BIN)/pytest -q -rs tests/interop tests/capture/test_against_tshark.py

# Foreign bytes to every reader, guided by coverage, and random lossy schedules under every law.
SECONDS ?= 60
SEED ?= 0
fuzz-readers: $(VENV)/test.stamp
	$(BIN)/pip install -q --group fuzzing
	PYTHONPATH=tests $(BIN)/python tests/fuzzing/run.py all --seconds $(SECONDS) --seed $(SEED)

soak: $(VENV)/test.stamp
	PYTHONPATH=tests $(BIN)/python tests/soak.py --seconds $(SECONDS)

# On virtual links between network namespaces; each test says what it lacks where it cannot run.
live: $(VENV)/test.stamp
	-$(BIN)/pip install -q -e '.[live]'
	$(BIN)/pytest -q -rs --override-ini addopts=--import-mode=importlib tests/live

# The peer of ibwire is Linux's Soft-RoCE in QEMU, built from Debian packages once and kept in
# ~/.cache/ibwire. Its time is the machine's: a guest that has to wait for a processor may be late, so
# that what fails is tried once more, without another guest beside it. Guests wait for each other most
# of the time, so two files of tests run side by side, each with guests of its own.
RXE = $(BIN)/pytest -q -rs -o addopts=--import-mode=importlib -o cache_dir=.pytest_cache/rxe tests/interop/rxe
interop-rxe: $(VENV)/test.stamp
	@command -v qemu-system-x86_64 >/dev/null || { \
	  echo 'make interop-rxe needs QEMU (Debian: apt-get install --no-install-recommends qemu-system-x86)'; exit 1; }
	$(BIN)/python tests/interop/rxe/build.py
	$(RXE) -n 2 --dist loadfile --no-loadscope-reorder || { test $$? = 1 && echo '::: what failed, once more' && $(RXE) --last-failed; }

# Beside two Soft-RoCE guests, which are what it takes to compare.
bench-rxe: $(VENV)/test.stamp
	$(BIN)/python tests/interop/rxe/build.py
	PYTHONPATH=tests $(BIN)/python tests/interop/rxe/speed.py

# The generated parts of pages, which tests compare: field reference, profiles, rules, pictures, and
# what the commands in examples print.
pages: $(VENV)/run.stamp
	$(BIN)/python -m ibwire_layers.reference layers/README.md
	$(BIN)/python -m ibwire.rc.reference docs/profiles.md
	$(BIN)/python -m ibwire.rules.reference docs/rules.md
	$(BIN)/python docs/tools/picture.py
	$(BIN)/python docs/tools/examples.py

# The documentation as a site, in site/: with the commands, the Python interface, and the notebooks,
# which are run for it. A link that leads nowhere is an error, and so is an error in a notebook.
docs: pages $(VENV)/site.stamp
	$(BIN)/python docs/tools/assemble.py build/pages
	$(BIN)/zensical build --strict --clean

wheel: $(VENV)/run.stamp
	$(BIN)/pip wheel -q --no-deps -w dist .

$(VENV)/python.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "ibwire needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip
	@touch $@

$(VENV)/run.stamp: $(VENV)/python.stamp pyproject.toml
ifeq ($(REQUIREMENTS),)
	$(BIN)/pip install -q -e '.[query,report]'
else
	$(BIN)/pip install -q -r $(REQUIREMENTS)
	$(BIN)/pip install -q --no-deps -e .
endif
	@touch $@

$(VENV)/test.stamp: $(VENV)/run.stamp
	$(BIN)/pip install -q --group test --group lint
	@touch $@

$(VENV)/site.stamp: $(VENV)/run.stamp
	$(BIN)/pip install -q --group docs
	@touch $@

# The suite with each Python that is installed.
test-pythons:
	@for version in 3.11 3.12 3.13 3.14; do \
	  if python$$version -c '' 2>/dev/null; then \
	    $(MAKE) PYTHON=python$$version VENV=.venv-$$version test || exit 1; \
	  else echo "python$$version is not installed: left out"; fi; \
	done

# requirements/: the newest versions with their hashes, and the lowest that pyproject.toml allows.
COMPILE = $(VENV)/bin/uv pip compile -q --universal --python-version 3.11 --no-emit-index-url --no-header \
  --extra query --extra report pyproject.toml
lock: $(VENV)/run.stamp
	$(BIN)/pip install -q uv
	mkdir -p requirements
	$(COMPILE) --upgrade --generate-hashes --group test --group lint --group docs -o requirements/locked.txt
	$(COMPILE) --no-annotate --resolution lowest-direct -o requirements/lowest.txt

# Known vulnerabilities of the locked versions; error 3 where the database of PyPI cannot be reached.
audit: $(VENV)/run.stamp
	$(BIN)/pip install -q pip-audit
	$(BIN)/python requirements/audit.py requirements/locked.txt

# What a release consists of, in dist/: wheel, source, list of components (CycloneDX), their licences.
release: wheel
	$(PYTHON) -m venv dist/environment
	dist/environment/bin/pip install -q "$$(echo dist/ibwire-*.whl)[query,report]"
	$(BIN)/pip install -q --group release
	$(BIN)/python -m build --sdist -o dist .
	$(BIN)/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml -o dist/ibwire.cdx.json \
	  dist/environment/bin/python
	$(BIN)/pip-licenses --python=dist/environment/bin/python --format=markdown --order=license \
	  --output-file=dist/LICENSES.md
	rm -rf dist/environment

clean:
	rm -rf $(VENV) $(wildcard .venv-*) dist build site .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
