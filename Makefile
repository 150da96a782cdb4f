# make run    fresh machine to results: .venv, locked packages, the default model, the bundled sample, scores and report
# make test   fresh machine to green tests
# make gpu MODEL=folder    on a CUDA machine: tests/gpu, then equality and speed as reports/gpu.md
# make lint   ruff and mypy        make lock   raise the locked versions        make clean   forget .venv
# PYTHON=python3.12 make run   chooses the interpreter (3.11 or newer).

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.PHONY: run test gpu lint lock clean
.NOTPARALLEL:

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
OK := import sys; sys.exit(sys.version_info < (3, 11))
export PYTHONNOUSERSITE := 1

# Shows the large downloads, keeps all of pip's words in a log, and shows its end when pip fails.
install = $(PIP) install $(1) 2>&1 | tee $(VENV)/install.log | sed -nE '/^ *Downloading .*[0-9]{2}(\.[0-9]+)? [MG]B\)/p' || \
  { grep -vE '^Requirement already|is ignored: it is neither' $(VENV)/install.log | tail -n 8 >&2; echo "error: pip could not install $(1); the same command goes on from here" >&2; exit 2; }

run: $(VENV)/.installed
	@$(PY) -m pipeline night

test: $(VENV)/.installed-dev
	@$(PY) -m pytest

gpu: $(VENV)/.installed-dev
	@$(PY) -m pytest tests/gpu -m gpu
	@{ PYTHONPATH=.:tests $(PY) -m tests.equality $(MODEL); echo; \
	  $(PY) -m pipeline bench --model $(MODEL) --rows 256 --new-tokens 64 --varied --beside transformers --beside transformers-continuous; \
	} | tee reports/gpu.md

lint: $(VENV)/.installed-dev
	@$(PY) -m ruff check && $(PY) -m ruff format --check && $(PY) -m mypy

# A stamp is made only when all went well, so an interrupted installation is taken up again by the same command.
$(VENV)/.installed: requirements.lock pyproject.toml $(VENV)/.made
	@echo "installing the locked packages into $(VENV) (torch is the largest; README: CPU or CUDA)"
	@$(call install,-r requirements.lock)
	@$(call install,--no-deps --no-build-isolation --editable .)
	@touch $@

$(VENV)/.installed-dev: requirements-dev.lock $(VENV)/.installed
	@echo "installing the test packages into $(VENV)"
	@$(call install,-r requirements.lock -r requirements-dev.lock)
	@touch $@

$(VENV)/.made:
	@for python in $${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do \
	  if command -v "$$python" >/dev/null && "$$python" -c '$(OK)' 2>/dev/null; then found="$$python"; break; fi; \
	done; \
	if [ -z "$${found:-}" ]; then \
	  echo "error: no Python 3.11 or newer found; install one, or name it: PYTHON=/path/to/python3 make run" >&2; exit 2; \
	fi; \
	echo "making $(VENV) with $$("$$found" --version)"; \
	"$$found" -m venv $(VENV) || { echo "error: $$found cannot make environments; on Debian and Ubuntu: apt install python3-venv" >&2; exit 2; }
	@touch $@

# Newest versions that pyproject.toml allows, tried in an environment of their own; compare and bench before keeping them (README).
lock: $(VENV)/.made
	@rm -rf .work/lock && $(PY) -m venv .work/lock
	@.work/lock/bin/python -m pip install --quiet . setuptools
	@(sed -n '/^#/p' requirements.lock; $(FREEZE)) > .work/requirements.lock
	@.work/lock/bin/python -m pip install --quiet ".[dev]"
	@(sed -n '/^#/p' requirements-dev.lock; $(FREEZE) | grep -vxFf .work/requirements.lock) > .work/requirements-dev.lock
	@mv .work/requirements.lock requirements.lock && mv .work/requirements-dev.lock requirements-dev.lock
	@git --no-pager diff --stat -- '*.lock' 2>/dev/null || true

# Plain versions: no local part of torch, none of the CUDA packages that its wheel brings by itself.
FREEZE = .work/lock/bin/python -m pip freeze --all | sed 's/+[^ ]*$$//' | grep -viE '^(pip|wheel|nightly-batch-inference|nvidia-|triton|cuda-)'

clean:
	rm -rf $(VENV)
