# Each target makes the environment it needs, from the pinned constraints: .venv at the root, and
# .venv-extras for the optional packages, so that `make test` shows that nothing else needs them.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
DOCS_STAMP := .venv/.docs-installed
EXTRAS_BIN := .venv-extras/bin
EXTRAS_STAMP := .venv-extras/.installed

.PHONY: demo test test-full test-extras lint docs results bench clean

demo: $(STAMP)
	$(BIN)/hessian-surgery demo --out runs/demo

test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile -m "not full"

test-full: lint $(DOCS_STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --cov --cov-report=term --cov-fail-under=90

test-extras: $(EXTRAS_STAMP)
	OMP_NUM_THREADS=1 $(EXTRAS_BIN)/pytest -n 2 --dist loadfile -m "extras and not full"

lint: $(STAMP)
	$(BIN)/ruff check src tests benchmarks docs/*.py
	$(BIN)/ruff format --check src tests benchmarks docs/*.py
	$(BIN)/mypy

docs: $(DOCS_STAMP)
	$(BIN)/sphinx-build --quiet --fresh-env --write-all --fail-on-warning --keep-going -d .venv/doctrees docs site

results: $(STAMP)
	$(BIN)/python docs/make_results.py
	$(BIN)/python docs/make_evidence.py

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

$(EXTRAS_STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-extras
	$(EXTRAS_BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-e '.[dev,hf,lora,export,vision,lightning,watch]'
	touch $(EXTRAS_STAMP)

clean:
	rm -rf .venv .venv-extras site .coverage .mypy_cache .ruff_cache .pytest_cache runs
