# Every target makes its own virtual environment in .venv with pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT ?= out
BENCH ?=
DEMO ?=
DEPLOY ?= -k "not real_processes or SCAFFOLD"

.PHONY: setup demo test chaos test-deploy lint bench pages speed docs wheel clean

setup: $(VENV)/ready

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: setup
	$(BIN)/fairlead compare --out $(OUT)/demo --drift $(DEMO)
	$(BIN)/fairlead report $(OUT)/demo

test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto $(PYTEST)

# about two hours; CHAOS_KILLS=20 CHAOS_FUZZ=30 CHAOS_FORGED=100 CHAOS_MINUTES=1 for a short form
chaos: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m slow tests/chaos $(PYTEST)

# Flower needs older versions of rich and typer than constraints.txt has, so it has an environment of its own.
$(VENV)-deploy/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-deploy
	$(VENV)-deploy/bin/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	$(VENV)-deploy/bin/python -m pip install --quiet --disable-pip-version-check -e ".[deploy]" "pytest>=8" "hypothesis>=6.100"
	touch $@

test-deploy: $(VENV)-deploy/ready
	OMP_NUM_THREADS=1 $(VENV)-deploy/bin/python -m pytest -q -m slow tests/deploy/test_flower.py $(DEPLOY)

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

bench: setup
	$(BIN)/fairlead bench --out $(OUT)/bench $(BENCH)
	$(BIN)/python benchmarks/compress.py
	$(BIN)/python benchmarks/splits.py
	$(BIN)/python benchmarks/images.py
	$(BIN)/python benchmarks/many.py
	$(BIN)/python benchmarks/history.py
	$(BIN)/python benchmarks/processes.py
	$(BIN)/python benchmarks/measures.py

pages: setup  # docs/methods, from the methods' code and entries in tools/handbook
	PYTHONPATH=tools $(BIN)/python -m handbook

speed: setup  # docs/speed.md, from the measurements in benchmarks/results
	$(BIN)/python benchmarks/page.py

docs: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --site-dir $(OUT)/site

wheel: setup
	$(BIN)/python .ci/wheel

clean:
	rm -rf $(VENV) $(OUT) dist
