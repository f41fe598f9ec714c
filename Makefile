# `make help` lists what there is. Everything runs in virtual environments of its own, made on first use.

PYTHON ?= python3

# The CPU build of torch, for the tests. On Linux, PyPI's own torch is a CUDA build of gigabytes; the index below has
# the CPU build under the same version, which pip prefers. Where that index cannot be reached, pip warns and goes on
# with the others, and the check behind it stops before anything of CUDA's is installed.
TORCH ?= torch==2.13.0
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

VENV := .venv
DEMO := .venv-demo
RELEASE := .venv-release
PIP_FLAGS := --disable-pip-version-check --quiet
# What pytest is told besides: `-n auto` is as many workers as there are cores, and more where tests mostly wait.
PYTEST_FLAGS ?=
FUZZ_SECONDS ?= 3600

.DEFAULT_GOAL := help
.PHONY: help demo quick unit test check outputs renew environment lint types docs fuzz bench waits dist clean python browser

# Tests of plugins, in rooms of the same names.
OF_PLUGINS := $(wildcard $(foreach room,browser process torch unit,tests/plugins/*/$(room)))

# Outcomes are noted for `make quick`. A test that hangs fails with the stacks of its threads.
PYTEST := $(VENV)/bin/python -m pytest -n auto --timeout 300 -p tests.support.outcomes $(PYTEST_FLAGS)

help:  ## list these targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "make %-6s %s\n", $$1, $$2 }'

demo: $(DEMO)/.ready  ## the dashboard on the bundled recordings, until Ctrl-C or for DEMO_SECONDS=N (without torch)
	@traces="$$($(DEMO)/bin/overlapscope samples)"; \
	if [ -z "$(DEMO_SECONDS)" ]; then exec $(DEMO)/bin/overlapscope dashboard "$$traces"; fi; \
	$(DEMO)/bin/overlapscope dashboard "$$traces" & \
	sleep $(DEMO_SECONDS) && kill $$! && wait $$!

quick: $(VENV)/.library  ## after each edit: run the tests nearest to what has changed, for half a minute
	@$(VENV)/bin/python -m tests.quick -n auto $(PYTEST_FLAGS)

unit: $(VENV)/.library  ## before each commit: run all tests that need no process, torch, browser or wheel
	$(PYTEST) tests/core $(wildcard tests/plugins/*/unit)

test: $(VENV)/.library browser  ## before each push: run every test, with the CPU build of torch and a real browser
	$(PYTEST) --durations=20 tests/browser $(OF_PLUGINS) tests/process tests/torch tests/core

check: $(VENV)/.library  ## what CI runs besides: every variant, docs/evaluation recomputed, the wheel installed, mutated traces judged
	$(PYTEST) --hypothesis-profile thorough tests/evaluation tests/exhaustive tests/package \
		$(wildcard tests/plugins/*/evaluation tests/plugins/*/exhaustive)
	$(MAKE) fuzz FUZZ_SECONDS=60 FUZZ_START=1

outputs: $(VENV)/.library  ## list the commands whose output on the bundled recordings has changed; AGAINST=CHECKOUT shows how
	$(VENV)/bin/python -m tests.outputs $(if $(AGAINST),--against $(AGAINST))

renew: $(VENV)/.library  ## after a change of rules, words or figures: write anew what is derived from the code, and read `git diff`
	$(VENV)/bin/python -m docs.generate
	$(VENV)/bin/python -m benchmarks.renew_laboratory traces/laboratory
	cp traces/laboratory/results.json overlapscope/samples/laboratory/results.json
	$(VENV)/bin/python -m benchmarks.diagnoses
	$(PYTEST) tests/core/report/test_golden.py tests/core/project/test_docs.py --update-golden
	$(VENV)/bin/python -m tests.outputs --update

environment: $(VENV)/.library browser

lint: $(VENV)/.ready  ## check style with ruff, and what imports what with import-linter
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check --quiet .
	$(VENV)/bin/lint-imports --no-cache

types: $(VENV)/.ready  ## check types with mypy --strict
	$(VENV)/bin/mypy --strict

docs: $(VENV)/.ready  ## build the documentation's site into site/; a wrong link or anchor is an error
	$(VENV)/bin/python -m docs.generate
	$(VENV)/bin/zensical build --clean --strict

fuzz: $(VENV)/.library  ## judge mutated traces for an hour, or for FUZZ_SECONDS=N; what is found goes to fuzz-found/
	$(VENV)/bin/python -m tests.fuzz --seconds $(FUZZ_SECONDS) $(if $(FUZZ_START),--start $(FUZZ_START))

bench: $(VENV)/.library browser  ## measure speed and memory into docs/ and benchmarks/ (needs 6 GB of disk, many minutes)
	$(VENV)/bin/python -m benchmarks.performance
	$(VENV)/bin/python -m benchmarks.check
	$(VENV)/bin/python -m benchmarks.dashboard
	$(VENV)/bin/python -m benchmarks.ranks

waits: $(VENV)/.library browser  ## measure how long people wait, beside the last release, into docs/evaluation/waits.md
	$(VENV)/bin/python -m benchmarks $(if $(RELEASE_NAME),--large --release $(RELEASE_NAME))

dist: $(RELEASE)/.ready  ## build sdist and wheels, for this platform and for any, into dist/, and check them
	rm -rf dist
	CC= $(RELEASE)/bin/python -m build --outdir dist
	$(RELEASE)/bin/python -m build --wheel --outdir dist/here
	@# Without a compiler it is the same as the one for everybody.
	@set -e; for wheel in dist/here/*.whl; do case $$wheel in \
		*-any.whl) ;; \
		*-linux_*) PATH="$(CURDIR)/$(RELEASE)/bin:$$PATH" auditwheel repair --wheel-dir dist $$wheel ;; \
		*) mv $$wheel dist ;; esac; done; rm -r dist/here
	$(RELEASE)/bin/twine check --strict dist/*

clean:  ## remove the environments, caches and built files
	rm -rf overlapscope/reading/libscan.so $(VENV) $(DEMO) $(RELEASE) .cache site dist build .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(DEMO)/.ready: pyproject.toml | python
	rm -rf $(DEMO)
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/pip install $(PIP_FLAGS) --editable '.[dashboard]'
	@touch $@

$(RELEASE)/.ready: pyproject.toml requirements/ci.txt | python
	rm -rf $(RELEASE)
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/pip install $(PIP_FLAGS) --constraint requirements/ci.txt --upgrade pip
	$(RELEASE)/bin/pip install $(PIP_FLAGS) --constraint requirements/ci.txt --group release
	@touch $@

$(VENV)/.ready: pyproject.toml requirements/ci.txt | python
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install $(PIP_FLAGS) --constraint requirements/ci.txt --upgrade pip
	$(VENV)/bin/pip install $(PIP_FLAGS) --retries 1 --extra-index-url $(TORCH_INDEX) --dry-run \
		--report $(VENV)/torch.json --constraint requirements/ci.txt $(TORCH)
	@! grep --quiet '"name": "nvidia-' $(VENV)/torch.json || { \
		echo "$(TORCH) would bring CUDA with it here: set TORCH_INDEX to an index with its CPU build." >&2; exit 1; }
	$(VENV)/bin/pip install $(PIP_FLAGS) --no-compile --retries 1 --extra-index-url $(TORCH_INDEX) \
		--constraint requirements/ci.txt $(TORCH)
	$(VENV)/bin/pip install $(PIP_FLAGS) --no-compile --constraint requirements/ci.txt --editable '.[all]' \
		--group test --group docs
	@# pip would compile one module after the other. Some packages have files that are no modules.
	@$(VENV)/bin/python -m compileall -qq -j 0 $(VENV)/lib || true
	@! $(VENV)/bin/pip list | grep --ignore-case '^nvidia-' || { echo "CUDA packages were installed." >&2; exit 1; }
	@touch $@ $(VENV)/.library

# The compiled part of the reader, when it has changed.
$(VENV)/.library: overlapscope/reading/scan.c hatch_build.py | $(VENV)/.ready
	$(VENV)/bin/pip install $(PIP_FLAGS) --no-deps --editable .
	@touch $@

# A Python that is new enough and can make environments; on Debian and Ubuntu that is a package of its own.
python:
	@command -v $(PYTHON) >/dev/null || { \
		echo "There is no $(PYTHON): install Python 3.11 or newer, or name one with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(PYTHON) is $$($(PYTHON) --version), but 3.11 or newer is needed: name one with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		package=$$($(PYTHON) -c 'import sys; print("python{}.{}-venv".format(*sys.version_info))'); \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; \
		then apt-get update -qq && apt-get install -qq -y "$$package"; \
		else echo "$(PYTHON) cannot make virtual environments: sudo apt-get install $$package" >&2; exit 1; fi; }

# The dashboard's tests fail without a browser. Debian has a package of one without windows.
browser: $(VENV)/.ready
	@$(VENV)/bin/python -m tests.browser.chromium >/dev/null 2>&1 || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; \
		then apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
			chromium-headless-shell fonts-liberation; \
		else $(VENV)/bin/python -m tests.browser.chromium; fi; }
