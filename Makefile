# make demo | test | test-all | check | docs | native | bench | chaos | papers | peers | gpu: each makes .venv and installs what it needs, in pinned versions,
# when it is missing; make setup installs all of it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export SHOAL_DATA ?= $(abspath ../shared/data)
MAKEFLAGS += --no-print-directory

.PHONY: setup demo test test-all slow check docs native bench chaos papers peers gpu tools dist sbom clean

setup: $(VENV)/.dev

# A stamp says that the environment has what pyproject.toml and constraints.txt ask for: of the extras that the demonstration needs, or of
# all of them.
DEPENDENCIES := pyproject.toml constraints.txt deploy/setup
$(VENV)/.demo: $(DEPENDENCIES)
	@$(PYTHON) deploy/setup $(VENV) edge,simulation
	@touch $@

$(VENV)/.dev: $(DEPENDENCIES)
	@$(PYTHON) deploy/setup $(VENV) dev
	@touch $(VENV)/.demo $@

demo: $(VENV)/.demo
	$(BIN)/shoal demo

# Many tests wait for processes and brokers: two workers more than there are cores keep the cores busy. `test` runs one representative of
# each mechanism, `test-all` what `test` leaves out, and `slow` what takes minutes each or needs programs that few machines
# have, and ten times as many examples of each property.
WORKERS ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 2 )))
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist worksteal
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

# The documentation as a site in build/site, which needs no network; every link is checked.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The library that boards run ExecuTorch programs with, and what it needs, as a folder to copy to one of the same kind.
native: setup deploy/.debian
	$(BIN)/python -m host.executorch.build --out build/native

BENCHMARKS := first_light personal candidates native server clustering virtual_time transport export edge curves encodings attackers models usual_speed dashboard
bench: setup deploy/.debian
	for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name || exit 1; done

# What the checks of deploy/ need (Ansible, Helm's library, hadolint, ...), in an environment of its own.
tools: .tools/.ready
.tools/.ready: deploy/tools.txt
	@$(PYTHON) -m venv .tools && .tools/bin/pip install --quiet --disable-pip-version-check -r deploy/tools.txt
	@touch $@

# What is published: the wheel of the last commit, with the same bytes wherever it is built, and what is in the environment that it was tested in.
dist: setup
	deploy/release dist

sbom: setup tools
	@mkdir -p dist
	.tools/bin/cyclonedx-py environment $(BIN)/python --pyproject pyproject.toml --output-reproducible --of JSON -o dist/sbom.json

# Real processes on which faults are brought about for 20 minutes, or ARGS="--minutes 5".
chaos: setup deploy/.debian
	$(BIN)/python -m tests.chaos $(ARGS)

# The papers' comparisons: an hour on two cores; NIGHT=1 for a night. What is finished is kept and not made again.
papers: setup
	$(BIN)/python -m benchmarks.papers $(if $(NIGHT),--night) $(ARGS)

peers: setup
	$(BIN)/python -m benchmarks.peers $(ARGS)

# The same results on a CUDA device as on the processor, and what it is worth. Without one both run on the processor, which shows that they run.
gpu: setup deploy/.debian
	$(PYTEST) -m '' tests/simulation/test_batched.py tests/algorithms/test_stack.py
	$(BIN)/python -m benchmarks.gpu

# Debian packages that tests use: the Mosquitto broker; PostgreSQL; the browser Chromium; Java, JUnit, npm (it brings the Kotlin compiler), a
# C++ compiler and Android's tools for the phone client. Installed when missing and we may; a test that needs one says so otherwise.
.PHONY: deploy/.debian
deploy/.debian:
	@deploy/install-debian mosquitto postgresql c++=g++ chromium junit5 javac=default-jdk-headless npm=npm aapt dexdump android-framework-res

clean:
	rm -rf $(VENV) .tools build dist android_bridge/.out android_bridge/.tools *.egg-info runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
