# `make demo` and `make test` create the virtual environment .venv when you first use them.
SHELL := /bin/bash
BIN := .venv/bin
PYTHON ?= $(shell command -v python3.11 || command -v python3)

.PHONY: demo docs test types fast coverage mutants seeds format clean chaos

demo: .venv/ready
	$(BIN)/fedraa run --method fed-raa --dataset digits --clients 10 --fragments 4 \
		--compute 1:0.5,3:0.5 --updates 200 --seed 0 --engine ray

# With this variable, each of the hundreds of processes that tests start would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

test: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) --no-print-directory --jobs 2 types fast
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "not slow and alone" tests/cluster

# `make test` runs mypy beside the tests: mypy uses one core, and the tests often wait for processes that they start.
types: .venv/ready
	$(BIN)/mypy

fast: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "not slow and not alone" --numprocesses 2 --dist loadgroup --durations 40

# Report the lines that fast tests run. Lines that run only in Ray's processes are not counted.
coverage: .venv/ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt pytest-cov
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "not slow and not alone" --numprocesses 2 --dist loadgroup \
		--cov fedraa --cov actors --cov schedulers --cov-report term:skip-covered --cov-precision 1 --cov-fail-under 95

mutants: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutants/run_mutants.py

seeds: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python tests/unit/actors/run_seeds.py

chaos: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.system.chaos

docs: .venv/docs
	OMP_NUM_THREADS=1 NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "the site is in build/site: open build/site/index.html, or, to search it, run: python -m http.server -d build/site"

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info

# Make installs the environment again when one of these two files changes.
.venv/ready: pyproject.toml constraints.txt
	@echo "installing Ray, PyTorch and fedraa into .venv: this takes minutes, but only the first time"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[test]'
	@# pip would compile 19,000 files in one process. Some of them are examples with errors.
	$(BIN)/python -m compileall -qq -j 0 .venv/lib || true
	touch $@

.venv/docs: .venv/ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs,test]'
	touch $@
