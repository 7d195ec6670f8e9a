# Two commands do everything: `make run` and `make test`. `make check` is what a commit must pass.
PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
ARGS ?=
SOURCES := app.py backend h3ui tests bench

.PHONY: run test test-all check format docs clean

run: $(VENV)/run.stamp
	$(PY) app.py $(ARGS)

# Tests that only compute share the cores; those that measure time or drive a browser have them to themselves.
COMPUTING := $(addprefix tests/,checkpoints engines h3 media nano runtime)

test: $(VENV)/dev.stamp browser
ifeq ($(strip $(ARGS)),)
	OMP_NUM_THREADS=1 $(PY) -m pytest -m "not thorough" -n 2 --dist loadfile $(COMPUTING)
	$(PY) -m pytest -m "not thorough" $(addprefix --ignore=,$(COMPUTING))
else
	$(PY) -m pytest -m "not thorough" $(ARGS)
endif

# With half an hour more: browser tests of every width, theme, language and flow, and the slowest of the others.
test-all: $(VENV)/dev.stamp browser
	H3_CHAOS_JOBS=$${H3_CHAOS_JOBS:-200} $(PY) -m pytest $(ARGS)

check: $(VENV)/dev.stamp
	$(PY) -m ruff format --check $(SOURCES)
	$(PY) -m ruff check $(SOURCES)
	$(PY) -m mypy
	$(PY) -m pytest tests/test_imports.py

format: $(VENV)/dev.stamp
	$(PY) -m ruff format $(SOURCES)
	$(PY) -m ruff check --fix $(SOURCES)

# Browser tests use the system's Chromium. Without one, and with apt and root at hand, install it; else they skip and say so.
.PHONY: browser
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || \
	  { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; } || \
	  echo "No Chromium and no way to install it here: browser tests will be skipped."

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; $$($(PYTHON) --version) found. Try: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/run.stamp: requirements.txt | $(VENV)/bin/python
	@echo "Installing H3 Studio's libraries (PyTorch is large: several GB, some minutes) ..."
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

$(VENV)/dev.stamp: requirements-dev.txt $(VENV)/run.stamp
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@

docs: $(VENV)/dev.stamp
	$(PY) tests/test_readme.py --write

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache
