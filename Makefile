# Each target makes the environment it needs: .venv at the root, from the pinned constraints.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test test-full lint bench clean

demo: $(STAMP)
	$(BIN)/hessian-surgery demo --out runs/demo

test: lint
	$(BIN)/pytest -m "not full" --cov --cov-report=term --cov-fail-under=90

test-full: lint
	$(BIN)/pytest

lint: $(STAMP)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[peers]'
	$(BIN)/python -m benchmarks.curvature
	$(BIN)/python -m benchmarks.footprint

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed, this is " + sys.version'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

clean:
	rm -rf .venv .coverage .mypy_cache .ruff_cache .pytest_cache runs
