"""The core's port for single words, and the arbiter of writes to instruction and scalar memory.

The port gives access to instruction memory, scalar memory, scalar registers and semaphores.
"""

from amaranth import Array, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from ..checks import instance
from ..config import Config
from ..isa import BUNDLE_BITS, BUNDLE_WORDS, SCALAR_REGISTERS, SEMAPHORES
from .interface import (
    REQUEST_ADDRESS_BITS,
    REQUEST_WORD_BITS,
    SPACE_BITS,
    Response,
    Space,
    core_request,
    word_write,
    write_words,
)

__all__ = ["HostPort", "WriteArbiter"]


class HostPort(wiring.Component):
    """Executes the host's requests, and the requests of transfers that read scalar memory.

    At most one request is accepted in a cycle, and only if the program does not use the required
    memory or register. While a program is running, scalar memory is accessible in cycles in which
    the program's loads and stores leave its port free. Semaphores can be read, and instruction
    memory can be written, at any time, so code that is not being executed can be replaced. All
    other requests wait until no program is running.

    Attributes
    ----------
    request, response : In(stream of core_request), Out(Response)
        Requests and their responses.
    quiet : In(1)
        No program is running, and no scalar load is outstanding.
    smem_read_free, smem_write_free : In(1)
        The program and the DMA engine leave this port of scalar memory free in this cycle.
    address : Out(20)
        Address of the request: the number of the word, register or semaphore. Not used for
        instruction memory.
    bundle_address, bundle_word : Out(log2 imem_bundles), Out(4)
        Address in instruction memory: the number of the bundle, and of the word in it.
    data : Out(32)
        Word to write.
    imem_read, imem_write, smem_read, smem_write, scalar_write, semaphore_write : Out(1)
        The access that is made in this cycle, if any; its address is in range.
    bundle, smem_data : In(BUNDLE_BITS), In(32)
        The bundle or word read, one cycle later.
    scalar_value, semaphore_value : In(32)
        The value at ``address``, in the same cycle.
    """

    def __init__(self, config: Config) -> None:
        instance("config", config, Config)
        self._config = config
        super().__init__({
            "request": In(stream.Signature(core_request())), "response": Out(Response()),
            "quiet": In(1), "smem_read_free": In(1), "smem_write_free": In(1),
            "address": Out(REQUEST_ADDRESS_BITS),
            "bundle_address": Out(ceil_log2(config.imem_bundles)),
            "bundle_word": Out(REQUEST_WORD_BITS), "data": Out(32),
            "imem_read": Out(1), "imem_write": Out(1), "smem_read": Out(1), "smem_write": Out(1),
            "scalar_write": Out(1), "semaphore_write": Out(1),
            "bundle": In(BUNDLE_BITS), "smem_data": In(32),
            "scalar_value": In(32), "semaphore_value": In(32),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        request = self.request.payload
        bundle = Signal(REQUEST_ADDRESS_BITS - REQUEST_WORD_BITS)
        word = Signal(REQUEST_WORD_BITS)
        accept = Signal()
        exists = Signal()
        read = Signal()
        write = Signal()
        m.d.comb += [
            bundle.eq(request.address[REQUEST_WORD_BITS:]),
            word.eq(request.address[:REQUEST_WORD_BITS]),
            self.address.eq(request.address),
            self.bundle_address.eq(bundle),
            self.bundle_word.eq(word),
            self.data.eq(request.data),
            accept.eq(self.request.valid & self.request.ready),
            read.eq(accept & exists & ~request.write),
            write.eq(accept & exists & request.write),
        ]
        calm = imem_write = write
        if self._config.issue_cycles > 1:
            # Equivalent for these spaces, but without a path from the issue via `smem_read_free`.
            imem_write = self.request.valid & exists & request.write
            calm = imem_write & self.quiet
        with m.Switch(request.space):
            with m.Case(Space.IMEM.value):
                m.d.comb += [
                    self.request.ready.eq(self.quiet | request.write),
                    exists.eq((bundle < self._config.imem_bundles) & (word < BUNDLE_WORDS)),
                    self.imem_read.eq(read), self.imem_write.eq(imem_write),
                ]
            with m.Case(Space.SMEM.value):
                m.d.comb += [self.request.ready.eq(
                                 Mux(request.write, self.smem_write_free, self.smem_read_free)),
                             exists.eq(request.address < self._config.smem_words),
                             self.smem_read.eq(read), self.smem_write.eq(write)]
            with m.Case(Space.SCALAR.value):
                m.d.comb += [self.request.ready.eq(self.quiet),
                             exists.eq(request.address < SCALAR_REGISTERS),
                             self.scalar_write.eq(calm)]
            with m.Case(Space.SEMAPHORE.value):
                m.d.comb += [self.request.ready.eq(self.quiet | ~request.write),
                             exists.eq(request.address < SEMAPHORES),
                             self.semaphore_write.eq(calm)]
        self._respond(m, accept, read, exists)
        return m

    def _respond(self, m: Module, accept: Signal, read: Signal, exists: Signal) -> None:
        """Drive the response, one cycle after a request to any space is accepted.

        ``accept``: a request is accepted. ``exists``: its address exists. ``read``: both, and the
        request is a read.
        """
        request = self.request.payload
        gives = Signal()
        space = Signal(SPACE_BITS, reset_less=True)
        word = Signal(REQUEST_WORD_BITS, reset_less=True)
        value = Signal(32, reset_less=True)
        m.d.sync += [
            self.response.valid.eq(accept),
            self.response.error.eq(accept & ~exists),
            gives.eq(read),
            space.eq(request.space),
            word.eq(request.address[:REQUEST_WORD_BITS]),
        ]
        with m.If(request.space == Space.SCALAR.value):
            m.d.sync += value.eq(self.scalar_value)
        with m.Else():
            m.d.sync += value.eq(self.semaphore_value)
        words = Array(self.bundle.word_select(i, 32) for i in range(BUNDLE_WORDS))
        with m.If(gives), m.Switch(space):
            with m.Case(Space.IMEM.value):
                m.d.comb += self.response.data.eq(words[word])
            with m.Case(Space.SMEM.value):
                m.d.comb += self.response.data.eq(self.smem_data)
            with m.Default():
                m.d.comb += self.response.data.eq(value)


class WriteArbiter(wiring.Component):
    """Chooses one write to instruction memory and one to scalar memory; combinational.

    For each memory, a bundle's store has the highest priority, the host the next, and a transfer
    the lowest. The host does not write in every cycle, so it cannot delay a transfer for long.

    Attributes
    ----------
    store, store_address, store_data : In(1), In(32), In(32)
        A bundle stores a word in scalar memory; the address is in range.
    host_imem_write, host_smem_write, host_address, host_bundle_address, host_bundle_word, host_data
        In: the host's access, from `HostPort`. It writes scalar memory only in cycles without
        ``store``.
    word_write : In(stream of word_write)
        Writes by transfers.
    imem, smem : Out
        The write ports of `hdl.core.fetch.InstructionMemory` and `hdl.core.scalar.ScalarMemory`.
    """

    combinational = True

    def __init__(self, config: Config) -> None:
        instance("config", config, Config)
        bundle_bits = ceil_log2(config.imem_bundles)
        words = {"write": Out(1), "write_one": Out(1), "write_data": Out(32 * write_words(config))}
        super().__init__({
            "store": In(1), "store_address": In(32), "store_data": In(32),
            "host_imem_write": In(1), "host_smem_write": In(1),
            "host_address": In(REQUEST_ADDRESS_BITS), "host_bundle_address": In(bundle_bits),
            "host_bundle_word": In(REQUEST_WORD_BITS), "host_data": In(32),
            "word_write": In(stream.Signature(word_write(config))),
            "imem": Out(wiring.Signature({
                **words, "write_address": Out(bundle_bits), "write_word": Out(REQUEST_WORD_BITS)})),
            "smem": Out(wiring.Signature({
                **words, "write_address": Out(ceil_log2(config.smem_words))})),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        imem, smem, write = self.imem, self.smem, self.word_write
        is_imem = Signal()
        m.d.comb += [
            is_imem.eq(write.payload.space == Space.IMEM.value),
            write.ready.eq(Mux(is_imem, ~self.host_imem_write,
                               ~self.store & ~self.host_smem_write)),
        ]
        with m.If(self.host_imem_write):
            m.d.comb += [imem.write.eq(1), imem.write_one.eq(1),
                         imem.write_address.eq(self.host_bundle_address),
                         imem.write_word.eq(self.host_bundle_word),
                         imem.write_data.eq(self.host_data)]
        with m.Else():
            m.d.comb += [imem.write.eq(write.valid & is_imem),
                         imem.write_address.eq(write.payload.address[REQUEST_WORD_BITS:]),
                         imem.write_word.eq(write.payload.address[:REQUEST_WORD_BITS]),
                         imem.write_data.eq(write.payload.data)]
        with m.If(self.store):
            m.d.comb += [smem.write.eq(1), smem.write_one.eq(1),
                         smem.write_address.eq(self.store_address),
                         smem.write_data.eq(self.store_data)]
        with m.Elif(self.host_smem_write):
            m.d.comb += [smem.write.eq(1), smem.write_one.eq(1),
                         smem.write_address.eq(self.host_address),
                         smem.write_data.eq(self.host_data)]
        with m.Else():
            m.d.comb += [smem.write.eq(write.valid & ~is_imem),
                         smem.write_address.eq(write.payload.address),
                         smem.write_data.eq(write.payload.data)]
        return m
