# make demo | test | check | native | bench | chaos | papers | peers: each makes .venv and installs what it needs, in pinned versions, when it is
# missing; make setup installs all of it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export SHOAL_DATA ?= $(abspath ../shared/data)
MAKEFLAGS += --no-print-directory

.PHONY: setup demo test slow check native bench chaos papers peers clean

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

# Many tests wait for processes and brokers: twice as many workers as there are cores keep the cores busy.
WORKERS ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) * 2 )))
test: setup deploy/.debian
	$(BIN)/pytest -n $(WORKERS) --dist worksteal $(ARGS)

slow: setup deploy/.debian
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m 'slow or not slow'

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The library that boards run ExecuTorch programs with, and what it needs, as a folder to copy to one of the same kind.
native: setup deploy/.debian
	$(BIN)/python -m host.executorch.build --out build/native

BENCHMARKS := first_light personal native server clustering virtual_time transport export edge curves encodings attackers models usual_speed dashboard
bench: setup deploy/.debian
	for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name || exit 1; done

# Real processes on which faults are brought about for 20 minutes, or ARGS="--minutes 5".
chaos: setup deploy/.debian
	$(BIN)/python -m tests.chaos $(ARGS)

# The papers' comparisons: an hour on two cores; NIGHT=1 for a night. What is finished is kept and not made again.
papers: setup
	$(BIN)/python -m benchmarks.papers $(if $(NIGHT),--night) $(ARGS)

peers: setup
	$(BIN)/python -m benchmarks.peers $(ARGS)

# Debian packages that tests use: the Mosquitto broker; PostgreSQL; the browser Chromium; Java, JUnit, npm (it brings the Kotlin compiler), a
# C++ compiler and Android's tools for the phone client. Installed when missing and we may; a test that needs one says so otherwise.
.PHONY: deploy/.debian
deploy/.debian:
	@deploy/install-debian mosquitto postgresql c++=g++ chromium junit5 javac=default-jdk-headless npm=npm aapt dexdump android-framework-res

clean:
	rm -rf $(VENV) build android_bridge/.out android_bridge/.tools *.egg-info runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
