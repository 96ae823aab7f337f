# `make demo`, `make quick` and `make test` each set everything up first; the rest is for those who change it.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CONSTRAINTS := -c constraints.txt

# Where there is no NVIDIA GPU only the CPU build will do: the +cpu makes sure that pip never
# takes the CUDA build from PyPI. It is asked for as pip is configured, and only if it is not to
# be had there from PyTorch's own index. (macOS has one build, without the suffix.)
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH_VERSION := $(shell sed -n 's/^torch==//p' constraints.txt)
HAS_GPU = $(shell nvidia-smi -L >/dev/null 2>&1 && echo yes)
TORCH = torch==$(TORCH_VERSION)$(if $(HAS_GPU),,$(if $(filter Linux,$(shell uname -s)),+cpu))

PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# One more than there are cores: tests that start processes wait for them. Their files come first,
# so that none is left over for one core at the end.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PYTEST = -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)
UNITS := -m "not integration and not slow and not long" --hypothesis-profile quick

# Where Python can watch lines by itself (3.12 and on), coverage costs next to nothing.
MONITOR = $(shell $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 12))' && echo COVERAGE_CORE=sysmon)

.PHONY: demo test page herd long frameworks quick units coverage wheel bench docs lint lock clean

demo: $(READY)
	$(BIN)/torchloom demo

test: $(READY)
	$(BIN)/python $(PYTEST) -m "not long and not slow" --hypothesis-profile some

# The demo, the page in a browser, the slow examples in docs and a third-party capability in a run,
# as CI runs them after `make test`.
page: WORKERS = 2
page: $(READY)
	$(BIN)/python $(PYTEST) -m "long or slow" tests/integration/test_demo.py \
		tests/packaging/test_third_party.py tests/browser tests/docs

# All that `make test` leaves out, in half an hour; a job of its own in the workflow.
# Real runs come first, no more at once than there are cores: groups that wait for one fail steps
# that the tests want whole. Then what computes, as each benchmark once, of a small size.
long: WORKERS = $(shell getconf _NPROCESSORS_ONLN)
long: page
	$(BIN)/python $(PYTEST) -m long --ignore tests/browser --deselect tests/integration/test_demo.py \
		--deselect tests/packaging/test_third_party.py
	$(BIN)/python $(PYTEST) -m slow --hypothesis-profile some

# The adapter of each framework with its oldest and newest version, in about an hour; it writes the
# table of docs/integrations/versions.md. DeepSpeed, torchtitan and Monarch are tested here alone.
frameworks: $(READY)
	$(BIN)/python .ci/framework_versions.py --torch "$(TORCH)" $(FRAMEWORKS)

# In under a minute: what needs no process and computes little.
quick: lint units

units: $(READY)
	$(BIN)/python $(PYTEST) $(UNITS)

coverage: $(READY)
	rm -rf build/coverage
	$(MONITOR) $(BIN)/coverage run $(PYTEST)
	$(BIN)/coverage combine --quiet
	$(BIN)/python .ci/coverage_by_package.py

# Install what would be published where there is nothing else, the base first.
wheel: $(READY)
	rm -rf build/wheel
	$(BIN)/python -m build --wheel --no-isolation --outdir build/wheel/dist
	$(PYTHON) -m venv build/wheel/bare
	.ci/try_wheel build/wheel

# The manual as a site, in build/site; a link that leads nowhere ends it. Its search wants a web
# server: python -m http.server -d build/site.
docs: $(READY)
	$(BIN)/python .ci/reference_pages.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# In half a minute: 300 workers come at once, and the server is killed under them.
herd: $(READY)
	PYTHONPATH=. $(BIN)/python experiments/many_workers/herd.py --workers 300 --quick

bench: $(READY)
	$(BIN)/python experiments/bench/run.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "torchLoom needs Python 3.11 or newer; name one with make PYTHON=..." >&2; exit 1; }
	@echo "Setting up $(VENV) with $(TORCH); the first time takes a minute or two."
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --no-deps "$(TORCH)" 2>/dev/null || \
		$(PIP) install --no-deps --index-url $(TORCH_INDEX) "$(TORCH)"
	$(PIP) install $(CONSTRAINTS) "$(TORCH)" -e ".[dev]"
	@touch $@

# Write constraints.txt again, with the newest of everything but torch.
lock:
	rm -rf build/lock
	$(MAKE) --no-print-directory VENV=build/lock CONSTRAINTS= build/lock/.ready
	{ sed -n '/^#/p' constraints.txt; build/lock/bin/python -m pip freeze --exclude torchloom \
		| sed 's/^\(torch==[^+]*\)+.*/\1/'; } > build/constraints.txt
	mv build/constraints.txt constraints.txt
	rm -rf build/lock

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
