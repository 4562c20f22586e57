# Systolith. `make help` lists what there is to make; every target sets up what it needs.

PYTHON ?= python3
CONFIG ?= v2
BUNDLES ?= 10000
COUNT ?= 200
SEED ?= 1
VENV := .venv
PY := $(VENV)/bin/python
# Groups and their order are those of verif/conftest.py; a build may need 1 GB.
SPREAD := --numprocesses auto --maxprocesses 4 --dist loadgroup --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup sim softmax test test-quick cocotb lint verilog bench exhaustive random products pictures docs clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.ready  ## make .venv with everything that is needed, once

$(VENV)/.ready: pyproject.toml constraints.txt .ci/check_host.sh
	@PYTHON="$(PYTHON)" sh .ci/check_host.sh
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[sim,test,lint]'
	@touch $@

$(VENV)/.bench-ready: $(VENV)/.ready
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	@touch $@

sim: setup  ## train a classifier, then run its test set on the chip in RTL, at v2 size; TRACE=1 records it
	$(PY) -m sim.apps.digits $(if $(TRACE),--trace)

softmax: setup  ## run a layer with a softmax as a program on the core in RTL, CONFIG=tiny|small|v2
	$(PY) -m sim.apps.softmax $(CONFIG)

test: setup  ## all tests
	$(PY) -m pytest $(SPREAD)

test-quick: setup  ## the tests that take a few seconds at most
	$(PY) -m pytest $(SPREAD) -m 'not slow'

cocotb: setup  ## the cocotb benches alone
	$(PY) -m verif.benches

lint: setup  ## style and types
	$(PY) -m ruff check .
	$(PY) -m mypy

verilog: setup  ## Verilog of CONFIG=tiny|small|v2 in build/verilog/CONFIG, linted
	$(PY) -m tools.verilog $(CONFIG)

bench: $(VENV)/.bench-ready  ## measure simulation speed, cell and chip on FPGAs; write build/bench.json
	$(PY) -m tools.bench

exhaustive: setup  ## the cell against the golden model: all 2^32 products, 10^9 sums (minutes)
	$(PY) -m verif.system.exhaustive

random: setup  ## random programs on the core in RTL and golden: CONFIG, BUNDLES, SEED
	$(PY) -m verif.system.random_programs $(CONFIG) --bundles $(BUNDLES) --seed $(SEED)

products: setup  ## products of random shapes on the chip in RTL and golden: CONFIG, COUNT, SEED
	$(PY) -m verif.system.random_products $(CONFIG) --count $(COUNT) --seed $(SEED)

pictures: setup  ## draw the pictures of the docs: the 3x3 array from RTL state, the block diagram
	$(PY) -m tools.pictures.wavefront
	$(PY) -m tools.pictures.diagram

docs: setup  ## write the instruction set's manual, the assembler's methods, the register map
	$(PY) -m tools.docs.slots
	$(PY) -m tools.docs.isa
	$(PY) -m tools.docs.registers

clean:  ## remove what was built; keep .venv
	rm -rf build
