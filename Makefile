# `make demo` and `make test` need Python 3.11+ and nothing else: they make the virtual environment themselves.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEMO   := $(VENV)/.demo
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
SOURCES := $(wildcard src tests studies benchmarks examples docs/*.py hatch_build.py)

.PHONY: demo test fuzz test-slow test-oldest test-newest test-versions lint bench docs package clean

# the package alone
$(DEMO): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e .
	touch $(DEMO)

# and all that tests, studies and documentation need
$(STAMP): $(DEMO)
	$(INSTALL) -e '.[dev,docs,onnx,dask,csv,studies,gpytorch]'
	touch $(STAMP)

demo: $(DEMO)
	$(BIN)/notsodeep demo

test: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

# an hour of random networks on random data; FUZZ="--inputs 1000000 --jobs 16 --seed 5" and the like change it
fuzz: $(STAMP)
	$(BIN)/python tests/fuzz/run.py --seconds 3600 --inputs 1000000000 --jobs 2 $(FUZZ)

test-slow: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m slow

# the lower end of the versions that pyproject.toml allows, in an environment of its own; the documentation, which
# these environments do not build, is tested by `make test`
test-oldest:
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-oldest.txt -e '.[dask,csv,studies]' pytest pytest-xdist hypothesis mpmath
	$(VENV)-oldest/bin/python -m pytest -q -n 2 --dist loadfile --ignore=tests/test_docs.py

# the newest versions that the package index has, whatever constraints.txt says; torch alone stays at its version there,
# because a newer one may bring gigabytes of CUDA
test-newest:
	$(PYTHON) -m venv $(VENV)-newest
	grep '^torch==' constraints.txt > $(VENV)-newest/torch.txt
	$(VENV)-newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade -c $(VENV)-newest/torch.txt -e '.[dask,csv,studies,onnx]' pytest pytest-xdist hypothesis mpmath
	$(VENV)-newest/bin/python -m pytest -q -n 2 --dist loadfile --ignore=tests/test_docs.py

# both ends of what is allowed
test-versions: test-oldest test-newest

lint: $(STAMP)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m benchmarks

docs: $(STAMP)
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

# what would be uploaded: built apart from this folder, checked, and installed into an empty environment;
# PROJECT_URL=https://... is the address of the repository, to which the README's links lead on the package page
package: export PROJECT_URL := $(PROJECT_URL)
package:
	rm -rf dist $(VENV)-package
	$(PYTHON) -m venv $(VENV)-package
	$(VENV)-package/bin/python -m pip install --quiet --disable-pip-version-check build twine
	$(VENV)-package/bin/python -m build --quiet
	$(VENV)-package/bin/twine check --strict dist/*
	rm -rf $(VENV)-package
	$(PYTHON) -m venv $(VENV)-package
	$(VENV)-package/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	cd dist && ../$(VENV)-package/bin/python -c "import notsodeep as nsd; print(nsd.__version__, nsd.match_one_layer(nsd.DEQ('tanh', 0.2)).bound)"
	cd dist && ../$(VENV)-package/bin/notsodeep explore --help > /dev/null

clean:
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-newest $(VENV)-package build dist docs/_build docs/_generated docs/api docs/gallery .pytest_cache .ruff_cache .mypy_cache .hypothesis
