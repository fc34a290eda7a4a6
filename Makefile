# Every target makes its own virtual environment in .venv with pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT ?= out
BENCH ?=
DEMO ?=

.PHONY: setup demo test chaos lint bench speed docs clean

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

speed: setup  # docs/speed.md, from the measurements in benchmarks/results
	$(BIN)/python benchmarks/page.py

docs: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	$(BIN)/mkdocs build --strict --site-dir $(OUT)/site

clean:
	rm -rf $(VENV) $(OUT)
