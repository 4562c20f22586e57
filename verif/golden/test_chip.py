"""Programs that use transfers and the other core, on the golden core and the golden chip."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from golden.chip import GoldenChip
from golden.core import GoldenCore
from hdl import isa
from hdl.config import Config
from hdl.dma.format import DESCRIPTOR_WORDS, DmaSpace
from hdl.encoding import bundle_words, pack
from hdl.isa import Fault, MiscOp, Slot
from sim.asm.assembler import Program
from sim.asm.descriptor import descriptor, hbm, imem, masks, other_vmem, smem, vmem, vreg
from sim.asm.operands import sem, v
from sim.asm.text import assemble

TINY = Config.preset("tiny")
SMALL = Config.preset("small")
PRESETS = [TINY, SMALL]
ONE_CORE = Config.preset("tiny", cores=1)


def random_words(array: NDArray[np.uint32], rng: np.random.Generator) -> None:
    array[:] = rng.integers(0, 1 << 32, array.shape, np.uint32)


def put(golden: GoldenCore, address: int, words: Sequence[int]) -> None:
    golden.smem[address:address + DESCRIPTOR_WORDS] = words


def run(golden: GoldenCore, text: str, max_bundles: int = 10_000) -> GoldenCore:
    golden.load_program(assemble(text, golden.config).bundles)
    golden.start()
    golden.run(max_bundles)
    return golden


# One core


@pytest.mark.parametrize("config", [*PRESETS, ONE_CORE], ids=str)
def test_a_program_loads_computes_and_stores(config: Config) -> None:
    seed = 1
    rng = np.random.default_rng(seed)
    golden = GoldenCore(config)
    rows = 4 * config.sublanes
    golden.hbm[:rows] = rng.normal(size=(rows, config.lanes)).astype(np.float32).view(np.uint32)
    put(golden, 0, descriptor(config, hbm(0), vmem(7), rows=rows, semaphore=sem[2]))
    target = 100 * config.row_bytes
    put(golden, 20, descriptor(config, vmem(20), hbm(target), rows=rows, semaphore=sem[3]))
    run(golden, """
        { misc.dma 0 | s0.add s1, s0, 4 | s1.add s2, s0, 7 }
        { misc.wait sem2, 1 }
        loop:
        { ld.load v1, s2 | s0.add s2, s2, 1 }
        { v0.fadd v1, v1, v1 }
        { st.store v1, s2, 12 | s1.loop s1, loop }
        { misc.dma 20 }
        { misc.wait sem3, 1 | s1.halt }
    """)
    assert golden.fault is Fault.NONE
    assert not golden.running
    source = golden.hbm[:rows].view(np.float32)
    result = golden.hbm[100:100 + rows].view(np.float32)
    assert np.array_equal(result, source + source)
    assert not golden.semaphores.any()


def test_a_transfer_comes_after_the_rest_of_its_bundle() -> None:
    golden = GoldenCore(TINY)
    golden.scalars[1:4] = 77, 0, 40
    put(golden, 0, descriptor(TINY, smem(40), hbm(0), rows=1))
    # The bundle's store to the source is copied, but not one to the descriptor; its load of the
    # destination gets the old words.
    put(golden, 20, descriptor(TINY, smem(40), smem(60), rows=1))
    golden.smem[60] = 5
    run(golden, "{ misc.dma 0 | s0.store s1, s2, 1 } { s1.halt }")
    assert golden.fault is Fault.NONE
    assert golden.smem[1] == 77
    golden.smem[1] = 1
    run(golden, "{ misc.dma 0 | s0.store s1, s3 } { s1.halt }")
    assert golden.hbm[0].tolist() == [77, 0, 0, 0]
    run(golden, "{ misc.dma 20 | s0.load s5, s0, 60 } { s1.halt }")
    assert golden.scalars[5] == 5
    assert golden.smem[60] == 77


def test_a_descriptor_that_was_changed_is_read_anew() -> None:
    golden = GoldenCore(TINY)
    golden.vmem[:] = np.arange(golden.vmem.size, dtype=np.uint32).reshape(golden.vmem.shape)
    put(golden, 0, descriptor(TINY, vmem(3), hbm(0), rows=2))
    run(golden, """
        { misc.dma 0 | s0.load s1, s0, 2 }
        { s0.add s1, s1, 1 | s1.add s2, s0, 32 }
        { s0.store s1, s0, 2 }
        { s0.store s2, s0, 6 }
        { misc.dma 0 }
        { s0.store s0, s0, 1 }
        { misc.dma 0 }
    """)
    assert np.array_equal(golden.hbm[:4], golden.vmem[3:5].reshape(4, 4))
    assert (golden.pc, golden.fault) == (6, Fault.DMA_DESCRIPTOR)


def test_registers_and_masks_go_to_memory() -> None:
    rng = np.random.default_rng(3)
    golden = GoldenCore(SMALL)
    random_words(golden.vectors, rng)
    golden.masks[1:] = rng.integers(0, 2, golden.masks[1:].shape)
    s = SMALL.sublanes
    put(golden, 0, descriptor(SMALL, vreg(v[5]), vmem(2), rows=3 * s))
    put(golden, 10, descriptor(SMALL, masks(), vmem(8), rows=s))
    run(golden, "{ misc.dma 0 } { misc.dma 10 } { s1.halt }")
    assert np.array_equal(golden.vmem[2:5], golden.vectors[5:8])
    for number in range(isa.MASKS):
        assert np.array_equal(golden.vmem[8] >> number & 1, golden.masks[number])
    assert (golden.vmem[8] < 256).all()


@pytest.mark.parametrize("config", PRESETS, ids=str)
def test_an_overlay_is_loaded_and_runs(config: Config) -> None:
    golden = GoldenCore(config)
    overlay = assemble("{ s0.add s5, s0, 1234 | s1.jump 3 } { s0.add s6, s0, 1 }")
    rows = overlay.rows(config)
    golden.hbm[9:9 + len(rows)] = rows
    put(golden, 30, descriptor(config, hbm(9 * config.row_bytes), imem(40), rows=len(rows),
                                semaphore=sem[15]))
    run(golden, """
        { misc.dma 30 }
        { misc.wait sem15, 1 }
        { s1.jump 40 }
        { s0.add s6, s5, 1 }
        { s1.halt }
    """)
    assert golden.fault is Fault.NONE
    assert golden.scalars[5:7].tolist() == [1234, 1235]
    assert golden.program[40:42] == list(overlay.bundles)


ONE_DMA = "{ s0.add s1, s0, 7 | misc.dma s9 | s1.call s2, 5 | v0.move v1, 3 | st.store v2, s0, 1 }"


def unchanged_but_fault(golden: GoldenCore, fault: Fault) -> None:
    """Execute the program's first bundle: it must raise this fault and change no other state."""
    golden.start()
    before = golden.read_state()
    program = list(golden.program)
    hbm_before = golden.hbm.copy()
    assert not golden.step()
    assert golden.fault is fault
    assert not golden.running
    after = golden.read_state()
    for name, value in before.items():
        if name not in ("running", "fault"):
            assert np.array_equal(after[name], value), name
    assert golden.program == program
    assert np.array_equal(golden.hbm, hbm_before)


@pytest.mark.parametrize(("word", "value", "fault"), [
    (0, 0x17, Fault.DMA_DESCRIPTOR), (0, 0x4010, Fault.DMA_DESCRIPTOR),
    (0, 0x2010, Fault.DMA_DESCRIPTOR), (0, 0x12, Fault.DMA_DESCRIPTOR),
    (1, 0, Fault.DMA_DESCRIPTOR), (7, 1, Fault.DMA_DESCRIPTOR), (5, 16, Fault.DMA_DESCRIPTOR),
    (1, 3, Fault.DMA_ALIGNMENT), (2, 8, Fault.DMA_ALIGNMENT),
    (3, 1, Fault.DMA_RANGE), (6, 255, Fault.DMA_RANGE),
])
def test_faults_of_a_descriptor_are_precise(word: int, value: int, fault: Fault) -> None:
    rng = np.random.default_rng(4)
    golden = GoldenCore(TINY)
    for array in (golden.vectors, golden.vmem, golden.smem, golden.hbm):
        random_words(array, rng)
    golden.scalars[9] = 246
    put(golden, 246, descriptor(TINY, hbm(16), vmem(3), rows=4, semaphore=sem[1]))
    golden.smem[246] &= ~np.uint32(0x1000)
    golden.load_program(assemble(ONE_DMA).bundles)
    golden.start()
    good = golden.smem[246 + word].copy()
    golden.stop()
    golden.smem[246 + word] = value
    unchanged_but_fault(golden, fault)
    golden.smem[246 + word] = good
    golden.start()
    assert golden.step()
    assert golden.pc == 5


@pytest.mark.parametrize("address", [247, 255, 256, 0x7FFFFFFF, 0xFFFFFFF6, 0xFFFFFFFF])
def test_a_descriptor_beyond_scalar_memory(address: int) -> None:
    golden = GoldenCore(TINY)
    golden.scalars[9] = address
    # Words that could be read there are not a valid descriptor either.
    golden.smem[:] = 0xFFFFFFFF
    golden.load_program(assemble(ONE_DMA).bundles)
    unchanged_but_fault(golden, Fault.SMEM_RANGE)


def test_of_several_faults_the_least_number_counts() -> None:
    golden = GoldenCore(TINY)
    for text, fault in (
            ("{ misc.dma 0 | ld.load v1, s0, 256 }", Fault.VMEM_RANGE),
            ("{ misc.dma 0 | s0.load s1, s0, 256 }", Fault.SMEM_RANGE),
            ("{ misc.dma 0 | pop.pop v1 }", Fault.FIFO_UNDERFLOW),
            ("{ misc.dma 250 | ld.load v1, s0, 256 }", Fault.SMEM_RANGE),
            ("{ misc.dma 0 }", Fault.DMA_DESCRIPTOR)):
        golden.load_program(assemble(text).bundles)
        unchanged_but_fault(golden, fault)


def test_a_completion_that_overflows_is_a_fault_of_the_next_bundle() -> None:
    golden = GoldenCore(TINY)
    golden.semaphores[4] = 0xFFFFFFFF
    put(golden, 0, descriptor(TINY, smem(0), hbm(0), rows=1, semaphore=sem[4]))
    run(golden, "{ s1.jump 3 | misc.dma 0 }")
    assert (golden.pc, golden.fault, golden.running) == (3, Fault.SEMAPHORE, False)
    assert golden.hbm[0, 1] == 1


@pytest.mark.parametrize("config", [TINY, ONE_CORE], ids=["two", "one"])
def test_alone_there_is_no_other_core(config: Config) -> None:
    golden = GoldenCore(config)
    golden.load_program([pack({Slot.MISC: {"op": MiscOp.SIGNAL_OTHER, "d": 1}})])
    unchanged_but_fault(golden, Fault.ILLEGAL)


# Two cores


def test_signal_other() -> None:
    chip = GoldenChip(TINY)
    one, two = chip.cores
    two.semaphores[5] = 10
    one.scalars[1] = 20
    run(one, "{ misc.signal_other sem5, s1 } { misc.signal_other sem5, 3 } { s1.halt }")
    assert two.semaphores[5] == 33
    assert not one.semaphores.any()
    assert one.fault is two.fault is Fault.NONE
    # An overflow beyond 32 bits is a fault of the other core, and the signal is lost.
    run(one, "{ misc.signal_other sem5, -32 } { s0.add s3, s0, 1 | s1.halt }")
    assert (one.fault, two.fault) == (Fault.NONE, Fault.SEMAPHORE)
    assert two.semaphores[5] == 33
    assert one.scalars[3] == 1


def ping_pong(config: Config, rounds: int) -> tuple[Program, Program]:
    """Return programs with which the cores pass a word back and forth, ``rounds`` times each.

    Core 0 begins, and each core adds one to the word before it sends it.
    """
    text = f"""
        {{ s0.add s1, s0, {rounds} }}
        again: {{ misc.wait sem6, 1 }}
        {{ ld.load v1, s0, 9 }}
        {{ v0.add v1, v1, 1 }}
        {{ st.store v1, s0, 8 }}
        {{ misc.dma 0 | s1.loop s1, again }}
        {{ s1.halt }}
    """
    # The first core begins with the word.
    return assemble("{ misc.signal sem6, 1 }" + text, config), assemble(text, config)


@pytest.mark.parametrize("turn", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("config", PRESETS, ids=str)
def test_words_go_to_and_fro(config: Config, turn: int) -> None:
    chip = GoldenChip(config)
    rounds = 12
    for core, program in zip(chip.cores, ping_pong(config, rounds), strict=True):
        put(core, 0, descriptor(config, vmem(8), other_vmem(9), rows=config.sublanes,
                                other_semaphore=sem[6]))
        core.load_program(program.bundles)
        core.start()
    result = chip.run(1000, turn)
    assert result.done, result
    assert result.executed == (2 + 5 * rounds + 1, 1 + 5 * rounds + 1)
    assert (chip.cores[1].vmem[8] == 2 * rounds).all()
    assert (chip.cores[0].vmem[9] == 2 * rounds).all()
    # No core waited for the last word that was sent back.
    assert chip.cores[0].semaphores[6] == 1
    assert not chip.cores[1].semaphores.any()


@pytest.mark.parametrize("turn", [1, 5, 64])
def test_a_pipeline_through_hbm_with_two_buffers(turn: int) -> None:
    """Core 0 fills two buffers of HBM alternately, and core 1 empties them.

    Semaphores count the full and the free buffers.
    """
    config = SMALL
    chip = GoldenChip(config)
    producer, consumer = chip.cores
    parts, rows = 9, 2 * config.sublanes
    buffers = [512 * config.row_bytes, 700 * config.row_bytes]
    for number, buffer in enumerate(buffers):
        put(producer, 10 * number, descriptor(config, vmem(0), hbm(buffer), rows=rows,
                                              other_semaphore=sem[number]))
        put(consumer, 10 * number, descriptor(config, hbm(buffer), vmem(4), rows=rows,
                                              semaphore=sem[8]))
    # Producer: semaphore 2 counts free buffers. The part's number is the data.
    producer.load_program(assemble(f"""
        {{ misc.signal sem2, 2 | s0.add s1, s0, {parts} }}
        again:
        {{ misc.wait sem2, 1 | v0.move v1, s3 | s0.add s3, s3, 1 }}
        {{ st.store v1, s0, 0 }}
        {{ st.store v1, s0, 1 }}
        {{ misc.dma s2 | s0.xor s2, s2, 10 | s1.loop s1, again }}
        {{ s1.halt }}
    """, config).bundles)
    # Consumer: shifts v2 and adds each part to it, so that the parts' order matters.
    consumer.load_program(assemble(f"""
        {{ s0.add s1, s0, {parts} }}
        again: {{ s1.bne s2, 0, second }}
        {{ misc.wait sem0, 1 | s1.jump get }}
        second: {{ misc.wait sem1, 1 }}
        get: {{ misc.dma s2 }}
        {{ misc.wait sem8, 1 }}
        {{ misc.signal_other sem2, 1 | ld.load v1, s0, 5 | v0.shl v2, v2, 3 }}
        {{ v0.add v2, v2, v1 }}
        {{ s0.xor s2, s2, 10 | s1.loop s1, again }}
        {{ s1.halt }}
    """, config).bundles)
    for core in chip.cores:
        core.start()
    result = chip.run(10_000, turn)
    assert result.done, result
    assert min(result.executed) > 4 * parts
    expected = 0
    for part in range(parts):
        expected = 8 * expected + part & 0xFFFFFFFF
    assert (consumer.vectors[2] == expected).all()
    assert producer.semaphores[2] == 2
    assert not consumer.semaphores.any()
    assert (chip.hbm[512:512 + rows] == parts - 1).all()
    assert (chip.hbm[700:700 + rows] == parts - 2).all()


def start_all(chip: GoldenChip, *texts: str) -> GoldenChip:
    for core, text in zip(chip.cores, texts, strict=True):
        core.load_program(assemble(text).bundles)
        core.start()
    return chip


def test_cores_that_wait_for_each_other_are_reported() -> None:
    chip = start_all(GoldenChip(TINY), "{ } { misc.wait sem1, 1 } { s1.halt }",
                     "{ } { } { misc.wait sem2, 1 } { misc.signal_other sem1, 1 } { s1.halt }")
    result = chip.run(1_000_000_000)
    assert result.executed == (1, 2)
    assert (result.running, result.waiting, result.faults, result.done) == ((), (0, 1), {}, False)
    # A signal of the host ends the wait.
    chip.cores[1].signal(2)
    result = chip.run(1_000_000_000)
    assert result.executed == (2, 3)
    assert result.done


def test_a_fault_is_reported_and_the_other_core_goes_on() -> None:
    chip = start_all(GoldenChip(TINY), "{ pop.pop v1 }",
                     "{ s0.add s1, s0, 100 } again: { s1.loop s1, again } { s1.halt }")
    result = chip.run(1000)
    assert result.executed == (0, 102)
    assert (result.running, result.waiting, result.done) == ((), (), False)
    assert result.faults == {0: Fault.FIFO_UNDERFLOW}


def test_a_run_ends_after_as_many_bundles_as_are_allowed() -> None:
    chip = start_all(GoldenChip(TINY), "again: { s1.jump again }", "{ misc.wait sem1, 1 }")
    for turn in (1, 7):
        result = chip.run(20, turn)
        assert result.executed == (20, 0)
        assert (result.running, result.waiting) == ((0,), (1,))
    assert chip.run(0).executed == (0, 0)


def test_a_chip_of_one_core() -> None:
    chip = GoldenChip(ONE_CORE)
    assert len(chip.cores) == 1
    assert chip.cores[0].peer is None
    assert chip.cores[0].hbm is chip.hbm
    assert start_all(chip, "{ } { s1.halt }").run(10).done


def test_cores_share_one_hbm_and_reach_each_other() -> None:
    chip = GoldenChip(TINY)
    assert chip.config is TINY
    assert all(core.hbm is chip.hbm for core in chip.cores)
    assert chip.cores[0].peer is chip.cores[1]
    assert chip.cores[1].peer is chip.cores[0]
    seed = 11
    random_words(chip.cores[1].vmem, np.random.default_rng(seed))
    put(chip.cores[0], 0, descriptor(TINY, other_vmem(5), vmem(6, run=1, stride=3), rows=4))
    run(chip.cores[0], "{ misc.dma 0 } { s1.halt }")
    assert np.array_equal(chip.cores[0].vmem[[6, 9]], chip.cores[1].vmem[5:7])


def test_what_was_decoded_alone_is_decoded_anew() -> None:
    first = GoldenCore(TINY)
    second = GoldenCore(TINY, first.hbm)
    put(first, 0, descriptor(TINY, vmem(0), other_vmem(0), rows=2, other_semaphore=sem[1]))
    text = "{ misc.signal_other sem1, 1 | s1.halt }"
    assert run(first, text).fault is Fault.ILLEGAL
    assert run(first, "{ misc.dma 0 | s1.halt }").fault is Fault.DMA_DESCRIPTOR
    first.connect(second)
    assert run(first, text).fault is Fault.NONE
    assert run(first, "{ misc.dma 0 | s1.halt }").fault is Fault.NONE
    assert second.semaphores[1] == 2


def test_configurations_that_are_no_chip_are_refused() -> None:
    golden = GoldenCore(TINY)
    with pytest.raises(TypeError, match="other must be a GoldenCore, not 1"):
        golden.connect(cast(Any, 1))
    with pytest.raises(ValueError, match="another core"):
        golden.connect(golden)
    with pytest.raises(ValueError, match="other must have Config"):
        golden.connect(GoldenCore(SMALL))
    with pytest.raises(ValueError, match="must share this core's array hbm"):
        golden.connect(GoldenCore(TINY))
    with pytest.raises(ValueError, match=r"config\.cores must be 2, not 1"):
        GoldenCore(ONE_CORE).connect(GoldenCore(ONE_CORE))
    other = GoldenCore(TINY, golden.hbm)
    golden.connect(other)
    with pytest.raises(ValueError, match="must not be connected already"):
        golden.connect(GoldenCore(TINY, golden.hbm))
    with pytest.raises(ValueError, match="must not be connected already"):
        GoldenCore(TINY, golden.hbm).connect(other)


@pytest.mark.parametrize(("arguments", "error", "message"), [
    ((-1,), ValueError, "max_bundles must be at least 0, not -1"),
    ((1.0,), TypeError, "max_bundles must be an integer, not 1.0"),
    ((1, 0), ValueError, "turn must be at least 1, not 0"),
    ((1, True), TypeError, "turn must be an integer, not True"),
])
def test_wrong_arguments_of_run(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        GoldenChip(TINY).run(*arguments)


def test_wrong_config_of_a_chip() -> None:
    with pytest.raises(TypeError, match="config must be a Config, not 'tiny'"):
        GoldenChip(cast(Any, "tiny"))


# Descriptors by name


def test_named_descriptor_is_that_of_its_numbers() -> None:
    words = descriptor(SMALL, hbm(0x400, run=16, stride=-32), vmem(32, run=2, stride=5), rows=24,
                       semaphore=sem[3], other_semaphore=sem[3])
    assert words == (0x3310, 24, 0x400, 0, 16, 0xFFFFFFE0, 32, 0, 2, 5)
    assert descriptor(SMALL, smem(9), imem(2), rows=1)[0] == DmaSpace.SMEM | DmaSpace.IMEM << 4
    assert descriptor(SMALL, smem(9), imem(2), rows=1)[6] == 32
    assert descriptor(SMALL, vreg(v[7]), other_vmem(1), rows=4)[0] == 0x25
    assert descriptor(SMALL, masks(), vmem(1), rows=4, other_semaphore=sem[15])[0] == 0x2F16


@pytest.mark.parametrize(("build", "error", "message"), [
    (lambda: hbm(-4), ValueError, r"address must be from 0 to 2\*\*64 - 1, not -4"),
    (lambda: hbm(cast(Any, 1.5)), TypeError, "address must be an integer, not 1.5"),
    (lambda: hbm(0, stride=16), ValueError, "stride must be 0 if run is 0, not 16"),
    (lambda: hbm(0, run=-1), ValueError, "run must be from 0 .* not -1"),
    (lambda: hbm(0, run=1, stride=1 << 31), ValueError, "stride must be .* not 2147483648"),
    (lambda: vmem(1 << 32), ValueError, r"address must be from 0 to 2\*\*32 - 1, not 4294967296"),
    (lambda: imem(1 << 28), ValueError, "bundle must be from 0 to 268435455, not 268435456"),
    (lambda: vreg(cast(Any, 3)), TypeError, "register must be a vector register, not 3"),
    (lambda: descriptor(cast(Any, "tiny"), hbm(0), vmem(0), rows=2), TypeError,
     "config .* not 'tiny'"),
    (lambda: descriptor(TINY, cast(Any, 0), vmem(0), rows=2), TypeError,
     "source must be a Place, not 0"),
    (lambda: descriptor(TINY, hbm(0), vmem(0), rows=0), ValueError, "rows must be from 1 .* not 0"),
    (lambda: descriptor(TINY, hbm(0), vmem(0), rows=3), ValueError,
     r"rows must be a multiple of 2, the rows of a vector, if destination is in VMEM, not 3"),
    (lambda: descriptor(TINY, imem(0), vmem(0), rows=2), ValueError,
     "source must be in one of HBM, VMEM, OTHER_VMEM, SMEM, VREG, MASK, not in IMEM"),
    (lambda: descriptor(TINY, hbm(0), masks(), rows=2), ValueError, "destination .* not in MASK"),
    (lambda: descriptor(TINY, hbm(8), vmem(0), rows=2), ValueError,
     "source: address must be a multiple of 16, the bytes of a row, not 8"),
    (lambda: descriptor(TINY, vmem(0), hbm(0, run=1, stride=-8), rows=2), ValueError,
     "destination: stride must be a multiple of 16, the bytes of a row, not -8"),
    (lambda: descriptor(TINY, hbm(0), vmem(255), rows=4), ValueError,
     "destination must lie within 0 to 255 of VMEM, not reach from 255 to 256"),
    (lambda: descriptor(TINY, hbm(0, run=1, stride=-16), vmem(0), rows=4), ValueError,
     "source must lie within 0 to 1048575 of HBM, not reach from -48 to 15"),
    (lambda: descriptor(TINY, smem(250), hbm(0), rows=2), ValueError,
     "source must lie within 0 to 255 of SMEM, not reach from 250 to 257"),
    (lambda: descriptor(ONE_CORE, hbm(0), other_vmem(0), rows=2), ValueError,
     "destination must not be in OTHER_VMEM on a chip of one core"),
    (lambda: descriptor(ONE_CORE, hbm(0), vmem(0), rows=2, other_semaphore=sem[1]), ValueError,
     r"other_semaphore must be None on a chip of one core, not sem\[1\]"),
    (lambda: descriptor(TINY, hbm(0), vmem(0), rows=2, semaphore=cast(Any, 3)), TypeError,
     "semaphore must be a semaphore or None, not 3"),
    (lambda: descriptor(TINY, hbm(0), vmem(0), rows=2, semaphore=sem[1], other_semaphore=sem[2]),
     ValueError, r"other_semaphore must be sem\[1\], like semaphore, not sem\[2\]"),
])
def test_descriptors_that_would_be_faults_are_refused(build: Callable[..., Any],
                                                      error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build()


@pytest.mark.parametrize("config", [TINY, SMALL, Config.preset("v2")], ids=["4", "8", "128"])
def test_rows_of_an_overlay(config: Config) -> None:
    text = "{ s0.add s1, s1, 100 } " * 5 + "{ s1.halt }"
    program = assemble(text)
    rows = program.rows(config)
    assert rows.dtype == np.uint32
    assert rows.shape == (-(-6 * 16 // config.lanes), config.lanes)
    flat = rows.reshape(-1)
    for number, bundle in enumerate(program.bundles):
        part = flat[16 * number:16 * number + 16].tolist()
        assert part == [*bundle_words(bundle), *[0] * 7]
    assert not flat[6 * 16:].any()
