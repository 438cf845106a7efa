# Each target makes the environment it needs: .venv at the root, from the pinned constraints.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
DOCS_STAMP := .venv/.docs-installed

.PHONY: demo test test-full lint docs results bench clean

demo: $(STAMP)
	$(BIN)/hessian-surgery demo --out runs/demo

test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile -m "not full"

test-full: lint $(DOCS_STAMP)
	$(BIN)/pytest --cov --cov-report=term --cov-fail-under=90

lint: $(STAMP)
	$(BIN)/ruff check src tests benchmarks docs/*.py
	$(BIN)/ruff format --check src tests benchmarks docs/*.py
	$(BIN)/mypy

docs: $(DOCS_STAMP)
	$(BIN)/sphinx-build --quiet --fresh-env --write-all --fail-on-warning --keep-going -d .venv/doctrees docs site

results: $(STAMP)
	$(BIN)/python docs/make_results.py

bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[peers]'
	$(BIN)/python -m benchmarks.curvature
	$(BIN)/python -m benchmarks.footprint

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed, this is " + sys.version'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $(DOCS_STAMP)

clean:
	rm -rf .venv site .coverage .mypy_cache .ruff_cache .pytest_cache runs
