# make setup   environment (.venv) and build, with what the tests need; complete on a fresh machine
# make run     the four showcase models through everything, and build/report.html about them; on a fresh machine too
#              (installs nothing that only tests need)
# make test    lint, C++ tests, Python tests, NVRTC over their kernels
# make build   all that changed           make lint / format    layout of the code
# make nvrtc   the kernels that `make test` left, as machine code of every architecture and not of one each
# make judge   PyTorch's own operator samples against eager; hours, and a run goes on where the last one ended (docs/judge.md)
# make bench   record the numbers         make clean            remove what was built (.venv stays)
# make examples  what `fusewright emit` writes for the showcase, anew
# On a machine with a GPU (scripts/gpu.sh): make gpu-tests, gpu-sanitize, gpu-ulp, gpu-bench, gpu-models, gpu-fuzz, gpu-judge

# Once .venv is made from an interpreter, that one stays until another is named.
PYTHON ?= $(shell made=$$(cat .venv/made-from 2>/dev/null) && [ -x "$$made" ] && echo "$$made" || echo python3)
BIN := .venv/bin

.PHONY: setup env test-env package build run test nvrtc lint format examples bench judge clean gpu-tests gpu-sanitize gpu-ulp gpu-bench gpu-models gpu-fuzz gpu-judge

# Parts of it install into one environment.
.NOTPARALLEL:

setup: test-env package
	@echo "setup: done. Next: make run, make test, or .venv/bin/python"

env:
	@$(PYTHON) scripts/setup.py

# What only tests and lint need comes on top.
test-env:
	@$(PYTHON) scripts/setup.py --tests

# The tests take longer to build than all the rest, and only `make test` needs them.
package: env
	@scripts/build.sh _core

build: test-env
	@scripts/build.sh

run: package
	@$(BIN)/python -m fusewright run -o build/report.html $(ARGS)

test: build
	@scripts/test.sh

nvrtc: build
	@build/tests/nvrtc_texts build/texts build/texts-known all

lint: test-env
	@scripts/lint.sh; status=$$?; [ $$status = 77 ] || exit $$status

format: test-env
	@scripts/lint.sh fix

# What `emit` writes for the showcase, kept to be read; a test compares.
examples: package
	@for model in examples/showcase/*.py; do \
	  $(BIN)/python -m fusewright emit $$model --scale full --no-measure -o examples/emitted/$$(basename $$model) || exit 1; done

bench: package
	@$(BIN)/python bench/cpu_chains.py $(ARGS)

judge: test-env package
	@PYTHONPATH=tests $(BIN)/python -m judge $(ARGS)

gpu-tests gpu-sanitize gpu-ulp gpu-bench gpu-models gpu-fuzz gpu-judge:
	@PYTHON=$(PYTHON) scripts/gpu.sh $(@:gpu-%=%) $(ARGS)

clean:
	rm -rf build dist python/fusewright/*.so .pytest_cache .ruff_cache .hypothesis
	find python tests bench examples scripts -name __pycache__ -type d -prune -exec rm -rf {} +
