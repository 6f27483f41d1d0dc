# Needs Python 3.11 or later and a package index; every target installs what it uses.
PYTHON ?= python3
BIN := .venv/bin
RUNTIME := .venv-runtime/bin
DEMO := artifacts/make-demo
GPU_RUN := artifacts/gpu-check

export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: help demo test variants gpu-check lint wheel docs clean

help:  ## print these lines
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/.installed wheel  ## train about a minute on real text, export with proof, generate where there is no torch
	$(BIN)/gptblock train pydoc --preset quick --overwrite --out $(DEMO)
	$(BIN)/gptblock export $(DEMO)
	$(PYTHON) -m venv --clear .venv-runtime
	$(RUNTIME)/pip install -q -c constraints.txt "$$(ls dist/gptblock-*.whl)[cpu]"
	@$(RUNTIME)/python -c "from importlib.util import find_spec; assert not find_spec('torch')"
	@echo "--- from here on in .venv-runtime, which has never had torch in it ---"
	$(RUNTIME)/gptblock verify $(DEMO)
	$(RUNTIME)/gptblock generate $(DEMO) -n 300

# A file's tests stay in one process, for they share fixtures; one thread each, or they fight for the cores.
test: .venv/.installed  ## run the tests, in two processes
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

variants: .venv/.installed  ## train, export and prove every combination of a block's parts: hours
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 tests/export/test_variants.py --all-variants

# Installs nothing, for such a machine may have no network: PYTHON has gptblock[gpu,train,test].
gpu-check:  ## where there is a GPU: prove the demo and each precision on it, run its tests, time it beside torch
	$(PYTHON) -m gptblock verify artifacts/demo --provider cuda
	$(PYTHON) -m gptblock verify artifacts/demo --provider cuda --cuda-graphs
	$(PYTHON) -m pytest tests/gpu -rs
	$(PYTHON) -m gptblock train pydoc --preset quick --overwrite --out $(GPU_RUN)
	$(PYTHON) -m gptblock export $(GPU_RUN) --format onnx --precision fp16 --precision int8 --precision int4
	$(PYTHON) -m gptblock verify $(GPU_RUN) --provider cuda
	$(PYTHON) -m gptblock bench $(GPU_RUN) --provider cuda
	$(PYTHON) -m gptblock bench $(GPU_RUN) --provider cuda --tf32
	$(PYTHON) -m gptblock bench $(GPU_RUN) --provider cuda --cuda-graphs
	$(PYTHON) benchmarks/generation.py --gpu --size S --rounds 3

lint: .venv/.installed  ## check style, format, types, and who imports whom
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

wheel: .venv/.installed  ## build the wheel into dist/
	rm -rf build dist
	$(BIN)/pip wheel -q --no-deps --wheel-dir dist .
	@ls dist

docs: .venv/.installed  ## write docs/cli.md from the commands
	$(BIN)/python docs/generate_cli.py

clean:  ## remove environments, caches and what was built; runs in artifacts/ stay
	rm -rf .venv .venv-runtime build dist *.egg-info .*_cache .hypothesis

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt -e '.[cpu,train,test]'
	@touch $@
