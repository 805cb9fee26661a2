# Everything is made in .venv, build and dist: nothing outside this folder is changed, and `make clean` undoes
# it. The tests and commands run on the wheel, which is built from the sdist, as a user would have it.

PYTHON ?= python3
# More arguments for the program that a target runs, as in: make test ARGS="-k region"
ARGS ?=

ifeq ($(origin CC),default)
CC := gcc
endif
export CC

VENV := .venv
BIN := $(VENV)/bin
C_FILES = $(shell find csrc tests -name '*.[ch]')
# Folders count as sources too: a folder changes when a file in it goes.
SOURCES := pyproject.toml setup.py MANIFEST.in README.md LICENSE \
    $(shell find csrc tlbprobe -name __pycache__ -prune -o -print)

help: ## Print this help
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 12

curve: $(VENV)/wheel ## Measure this machine's latency curve: curve.png and curve.npz
	$(BIN)/tlbprobe curve --out curve.npz --plot curve.png $(ARGS)

# PYTHONSAFEPATH keeps ./tlbprobe, which has no compiled part, out of the way of the Pythons that tests start.
test: $(VENV)/develop ## Run the tests on the wheel
	PYTHONSAFEPATH=1 $(BIN)/pytest $(ARGS)

bench: $(VENV)/develop ## Print speed and memory beside what they are compared with
	$(BIN)/python tests/bench/run.py $(ARGS)

truth: $(VENV)/develop ## What the anatomy says of machines that are known: ten minutes; writes docs/anatomy.md
	$(BIN)/python tests/bench/truth.py --docs $(ARGS)

lint: $(VENV)/develop ## Check the code's rules and its format
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run -Werror $(C_FILES)

format: $(VENV)/develop ## Format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(C_FILES)

types: $(VENV)/develop ## Check the types, and the stubs against the compiled parts
	$(BIN)/mypy tlbprobe
	PYTHONSAFEPATH=1 $(BIN)/stubtest tlbprobe._core tlbprobe._simulated

# The pure C part; the bridge is left out, since the headers of Python and NumPy do not pass.
STRICT := -std=c11 -O2 -D_GNU_SOURCE -Icsrc -Wall -Wextra -Werror -Wpedantic -Wconversion -Wshadow -Wvla \
    -Wmissing-prototypes -Wstrict-prototypes -Wundef -Wwrite-strings
strict: ## Compile the pure C part under strict warnings, with clang too where there is one
	@for cc in $(CC) $$(command -v clang); do \
	    for file in $$(find csrc -name '*.c' ! -path 'csrc/python/*' ! -path 'csrc/simulated/*'); do \
	        echo $$cc $$file && $$cc $(STRICT) -c $$file -o /dev/null || exit 1; \
	    done; \
	    for file in csrc/measure.c csrc/kernels/*.c csrc/simulated/*.c; do \
	        echo $$cc -DTLB_SIMULATED $$file && \
	            $$cc $(STRICT) -DTLB_SIMULATED -c $$file -o /dev/null || exit 1; \
	    done; \
	done

# The sanitized copy lies before the wheel on Python's path. libasan must come first in a process, and
# libstdc++ must be there when it starts, or it knows nothing of the exceptions that matplotlib throws. The
# first error aborts, so that Python says where it was; --capture=sys lets that and the report through.
# What is pure Python, or above C that other tests run, has nothing for the sanitizers. What was freed is kept
# back for a while, but not for so long that every fork of a test copies the page tables of a gigabyte.
PURE := advice analysis budget curve events files hierarchy machine machines measurement model plot readme sweeps \
    units verdicts whatif
asan: $(VENV)/develop ## Run the tests on a build with AddressSanitizer and UBSan
	rm -rf build/asan
	TLBPROBE_SANITIZE=1 tools/install.sh $(VENV) --no-build-isolation --no-deps --target build/asan dist/*.tar.gz
	LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libstdc++.so.6)" \
	ASAN_OPTIONS=abort_on_error=1:allocator_may_return_null=1:detect_leaks=0:quarantine_size_mb=16:malloc_context_size=8 \
	UBSAN_OPTIONS=abort_on_error=1:print_stacktrace=1 PYTHONMALLOC=malloc \
	PYTHONPATH=build/asan PYTHONSAFEPATH=1 $(BIN)/pytest --capture=sys -m "not no_asan" $(PURE:%=--ignore=tests/test_%.py) $(ARGS)

smoke: $(VENV)/wheel ## Install the sdist on every other CPython of this machine, and try it
	tools/smoke.sh $(BIN)/python dist/*.tar.gz

notebooks: $(VENV)/notebook ## Open the notebooks in JupyterLab
	$(BIN)/jupyter lab notebooks $(ARGS)

readme: $(VENV)/wheel ## Write anew what follows from the code: names, tables of the docs, pictures
	$(BIN)/python tools/generate.py
	$(BIN)/tlbprobe plot notebooks/data/zen4-guest-curve.npz README.png
	$(BIN)/tlbprobe plot notebooks/data/zen4-guest-anatomy.npz docs/anatomy.png

clean: ## Remove all that make has made
	rm -rf $(VENV) build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

.PHONY: help curve test bench truth lint format types strict asan smoke notebooks readme clean

# An environment that another Python made, or that lay in another folder when its scripts were written, is
# made anew.
ORIGIN := $(PYTHON) $(CURDIR)
ifneq ($(file <$(VENV)/origin),$(ORIGIN))
.PHONY: $(VENV)/origin
endif

$(VENV)/origin: tools/venv.sh
	@echo "Making $(VENV)"
	@tools/venv.sh $(PYTHON) $(VENV)
	@tools/install.sh $(VENV) build 'setuptools>=77' 'numpy>=2.0'
	@echo '$(ORIGIN)' >$@

# The list of files in an old egg-info would put files into the sdist that MANIFEST.in does not name.
$(VENV)/wheel: $(VENV)/origin $(SOURCES)
	@echo "Building the sdist, and the wheel from it"
	@rm -rf dist *.egg-info
	@$(BIN)/python -m build --no-isolation >$(VENV)/build.log 2>&1 || { cat $(VENV)/build.log >&2; exit 1; }
	@echo "Installing the wheel and what it needs"
	@$(BIN)/python -m pip uninstall --quiet --yes tlbprobe 2>/dev/null
	@tools/install.sh $(VENV) dist/*.whl
	@touch $@

$(VENV)/develop $(VENV)/notebook: $(VENV)/origin pyproject.toml | $(VENV)/wheel
	@echo "Installing the packages of the extra $(@F)"
	@tools/install.sh $(VENV) "$$(echo dist/*.whl)[$(@F)]"
	@touch $@
