# make demo | test | test-all | check | docs | native | bench | chaos | papers | peers | gpu | board
# Each target creates .venv and installs the pinned versions of what it needs, if missing. `make setup` installs everything.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export SHOAL_DATA ?= $(abspath ../shared/data)
MAKEFLAGS += --no-print-directory

.PHONY: setup demo test test-all slow check docs native bench chaos papers peers gpu board tools dist sbom clean

setup: $(VENV)/.dev

# Stamp files: the environment matches pyproject.toml and constraints.txt, with the demonstration's extras (.demo) or with all
# extras (.dev).
DEPENDENCIES := pyproject.toml constraints.txt deploy/setup
$(VENV)/.demo: $(DEPENDENCIES)
	@$(PYTHON) deploy/setup $(VENV) edge,simulation
	@touch $@

$(VENV)/.dev: $(DEPENDENCIES)
	@$(PYTHON) deploy/setup $(VENV) dev
	@touch $(VENV)/.demo $@

demo: $(VENV)/.demo
	$(BIN)/shoal demo

# Many tests wait for processes and brokers, so two workers more than there are cores keep the cores busy. `test` runs one
# representative of each mechanism; `test-all` runs the tests that `test` leaves out; `slow` runs the tests that take minutes or
# need uncommon programs, and ten times as many examples of each property.
WORKERS ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 2 )))
# Tests start hundreds of processes: bytecode is kept for the next one, whatever the environment says.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n $(WORKERS) --dist worksteal
test: setup deploy/.debian
	$(PYTEST) $(ARGS)

test-all: setup deploy/.debian
	$(PYTEST) -m 'full and not slow' $(ARGS)

slow: setup deploy/.debian
	$(PYTEST) -m slow $(ARGS)
	$(PYTEST) -m 'hypothesis and not slow' --hypothesis-profile=night $(ARGS)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/style.py

# Build the documentation as a site in build/site, which works without a network. Every link is checked.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Build the library that runs ExecuTorch programs on boards, with its dependencies, as a folder to copy to a board of the same
# kind.
native: setup deploy/.debian
	$(BIN)/python -m host.executorch.build --out build/native

BENCHMARKS := first_light personal candidates native server clustering virtual_time transport export edge curves encodings attackers liars models usual_speed dashboard cpp_client
bench: setup deploy/.debian
	@deploy/install-debian libmosquitto-dev nlohmann-json3-dev libssl-dev
	for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name || exit 1; done

# Install the tools that check deploy/ (Ansible, Helm's library, hadolint, ...) into a separate environment.
tools: .tools/.ready
.tools/.ready: deploy/tools.txt
	@$(PYTHON) -m venv .tools && .tools/bin/pip install --quiet --disable-pip-version-check -r deploy/tools.txt
	@touch $@

# Build what is published: a reproducible wheel of the last commit, and the list of packages in the tested environment (sbom).
dist: setup
	deploy/release dist

sbom: setup tools
	@mkdir -p dist
	.tools/bin/cyclonedx-py environment $(BIN)/python --pyproject pyproject.toml --output-reproducible --of JSON -o dist/sbom.json

# Inject faults into real processes for 20 minutes; ARGS="--minutes 5" changes the duration.
chaos: setup deploy/.debian
	$(BIN)/python -m tests.chaos $(ARGS)

# Repeat the papers' comparisons: an hour on two cores; with NIGHT=1, a night. Results already in the folder are not computed
# again.
papers: setup
	$(BIN)/python -m benchmarks.papers $(if $(NIGHT),--night) $(ARGS)

peers: setup
	$(BIN)/python -m benchmarks.peers $(ARGS)

# Compare a CUDA device with the processor: equal results, and the speed-up. Without a CUDA device both runs use the processor,
# which only checks that they run.
gpu: setup deploy/.debian
	$(PYTEST) -m '' tests/simulation/test_batched.py tests/algorithms/test_stack.py
	$(BIN)/python -m benchmarks.gpu

# Test a board with an ARM processor, emulated: it enrols, trains beside a device of this machine, loses its power and predicts.
board: setup deploy/.debian
	$(BIN)/pytest -m '' tests/end_to_end/test_arm64.py $(ARGS)

# Install the Debian packages that tests use, if missing and permitted: the Mosquitto broker; PostgreSQL; the browser Chromium;
# Java, JUnit, BouncyCastle, npm (for the Kotlin compiler), a C++ compiler and Android's tools for the phone client; the emulator of
# boards. A test whose package is missing is skipped and names the package.
.PHONY: deploy/.debian
deploy/.debian:
	@deploy/install-debian mosquitto nats-server postgresql c++=g++ chromium junit5 libbcprov-java javac=default-jdk-headless npm=npm aapt dexdump android-framework-res mmdebstrap qemu-aarch64-static=qemu-user-static

clean:
	rm -rf $(VENV) .tools build dist android_bridge/.out android_bridge/.tools *.egg-info runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
