"""Handles, errors, donation of arguments, and the ends of processes."""

import signal

import pytest

from verif.sim.pjrt.process import LIMIT, run, start


def test_calls_leak_neither_buffers_nor_handles() -> None:
    def program() -> None:
        import gc

        import jax
        import numpy as np

        from sim.pjrt.platform import Worker

        def used():  # type: ignore[no-untyped-def]
            # What has been asked for before this array is done when it is ready.
            last = jax.device_put(np.float32(0))
            last.block_until_ready()
            return jax.devices()[0].memory_stats()["bytes_in_use"], worker.chips.sizes

        step = jax.jit(lambda x, y: (x + y, x * y))
        x = jax.device_put(np.ones((3, 5), np.float32))
        jax.block_until_ready(step(x, x))
        [worker] = [item for item in gc.get_objects() if isinstance(item, Worker)]
        before = used()
        for _ in range(1000):
            total, product = step(x, x)
            np.asarray(total)
        del total, product
        assert used() == before
        jax.clear_caches()
        del step
        gc.collect()
        after = used()
        assert after[0] < before[0]
        # The argument, and what `used` has made.
        assert after[1] == (2, 0)

    run(program)


def test_donated_arguments_are_deleted_and_nothing_warns() -> None:
    def program() -> None:
        import jax
        import numpy as np
        import pytest

        def used():  # type: ignore[no-untyped-def]
            last = jax.device_put(np.float32(0))
            last.block_until_ready()
            return jax.devices()[0].memory_stats()["bytes_in_use"]

        step = jax.jit(lambda x, y: (x + y, x * 2), donate_argnums=0)
        x, y = (jax.device_put(np.full((4, 8), value, np.float32)) for value in (1, 3))
        first, second = step(x, y)
        assert x.is_deleted()
        assert not y.is_deleted()
        np.testing.assert_array_equal(first, np.full((4, 8), 4))
        np.testing.assert_array_equal(second, np.full((4, 8), 2))
        with pytest.raises((RuntimeError, ValueError), match="deleted"):
            step(x, y)
        first, second = step(first, y)
        before = used()
        for _ in range(20):
            first, second = step(first, y)
        assert used() == before
        np.testing.assert_array_equal(first, np.full((4, 8), 4 + 3 * 21))

    run(program)


def test_results_lie_in_the_memory_of_donated_arguments() -> None:
    def program() -> None:
        import jax
        import jax.numpy as jnp
        import numpy as np
        import pytest

        def stats():  # type: ignore[no-untyped-def]
            last = jax.device_put(np.float32(0))  # One allocation, after all pending work.
            last.block_until_ready()
            return jax.devices()[0].memory_stats()

        host = np.arange(3 * 8 * 8, dtype=np.float32).reshape(3, 8, 8)
        size = host[0].nbytes
        plain = jax.jit(lambda w, v, g: (w - 2 * v, v + g))
        step = jax.jit(lambda w, v, g: (w - 2 * v, v + g), donate_argnums=(0, 1))
        w, v, g = map(jax.device_put, host)
        for _ in range(2):
            step(*map(jax.device_put, host[:2]), g)[0].block_until_ready()
        before = stats()
        first, second = plain(w, v, g)
        second.block_until_ready()
        assert stats()["num_allocs"] == before["num_allocs"] + 1 + 2
        assert stats()["bytes_in_use"] >= before["bytes_in_use"] + 2 * size
        before = stats()
        w, v = step(w, v, g)
        v.block_until_ready()
        assert stats()["num_allocs"] == before["num_allocs"] + 1
        assert stats()["bytes_in_use"] == before["bytes_in_use"]
        assert stats()["peak_bytes_in_use"] == before["peak_bytes_in_use"]
        np.testing.assert_array_equal(w, first)
        np.testing.assert_array_equal(v, second)
        # Another array shares the memory.
        same = jax.device_put(g, jax.devices()[1])
        _, moved = jax.jit(lambda g, w: (w, g + w), donate_argnums=0)(g, w)
        np.testing.assert_array_equal(moved, host[2] + np.asarray(w))
        np.testing.assert_array_equal(same, host[2])
        # An argument given twice, and a call that fails after it has taken the memory.
        twice = jax.jit(lambda a, b: (a + 1, b + a), donate_argnums=0)
        np.testing.assert_array_equal(twice(w, w)[1], 2 * np.asarray(first))
        large = jax.jit(lambda a: (a + 1, jnp.zeros((1 << 28,))), donate_argnums=0)
        a = jax.device_put(host[0])
        a.block_until_ready()
        before = stats()
        with pytest.raises(RuntimeError, match=r"RESOURCE_EXHAUSTED|HBM"):
            large(a)[0].block_until_ready()
        assert stats()["bytes_in_use"] <= before["bytes_in_use"] - size
        assert a.is_deleted()

    run(program)


def test_errors_say_what_is_wrong_and_leave_the_chip_usable() -> None:
    def program() -> None:
        import jax
        import jax.numpy as jnp
        import numpy as np
        import pytest

        def fails(act, *parts):  # type: ignore[no-untyped-def]
            with pytest.raises(jax.errors.JaxRuntimeError) as raised:
                jax.block_until_ready(act())
            text = str(raised.value)
            assert all(part in text for part in parts), text
            np.testing.assert_array_equal(jnp.arange(3) + 1, [1, 2, 3])

        ones = np.ones(8, np.float32)
        # All that is not supported, with the lines of this file.
        fails(lambda: jax.jit(lambda x: (jnp.fft.fft(x).real, jnp.sort(jnp.fft.fft(x[:4]).real)))(
            ones), "UNIMPLEMENTED", "<string>:", "fft")
        fails(lambda: jax.device_put(ones.astype(np.float16)), "UNIMPLEMENTED", "f16", "bfloat16")
        # 1 MiB of HBM.
        big = [jax.device_put(np.ones((64, 1024), np.float32)) for _ in range(3)]
        fails(lambda: jax.device_put(np.ones((64, 1024), np.float32)), "RESOURCE_EXHAUSTED", "HBM")
        # What needs a value that could not be made fails in the same way.
        double = jax.jit(lambda x: x * 2)
        double(np.ones((32, 32), np.float32)).block_until_ready()
        small = [jax.device_put(np.ones((32, 32), np.float32)) for _ in range(70)]
        with pytest.raises(jax.errors.JaxRuntimeError,
                           match="RESOURCE_EXHAUSTED: a buffer needs 4096 contiguous bytes of HBM"):
            double(small[-1]).block_until_ready()
        del big, small
        jax.device_put(np.ones((64, 1024), np.float32)).block_until_ready()

    run(program)


def test_code_of_programs_makes_room_for_arrays() -> None:
    def program() -> None:
        import jax
        import numpy as np

        x = np.ones(4, np.float32)
        steps = [jax.jit(lambda x, k=k: x + k) for k in range(3)]
        for step in steps:
            step(x).block_until_ready()
        used = jax.devices()[0].memory_stats()["bytes_in_use"]
        limit = jax.devices()[0].memory_stats()["bytes_limit"]
        # More than what is free, but not more than what is free without the programs.
        big = jax.device_put(np.zeros(((limit - used // 2) // 16, 4), np.float32))
        big.block_until_ready()
        big.delete()
        for k, step in enumerate(steps):
            np.testing.assert_array_equal(step(x), x + k)

    run(program)


BACKENDS = ["golden", pytest.param("rtl", marks=pytest.mark.slow)]


@pytest.mark.parametrize("kind", BACKENDS)
def test_faults_name_cause_and_line(kind: str) -> None:
    def program() -> None:
        import gc

        import jax
        import jax.numpy as jnp
        import numpy as np
        import pytest

        from hdl.isa import BUNDLE_BITS, BUNDLE_WORDS
        from sim.driver.device import Device
        from sim.pjrt.platform import Worker

        def step(x):  # type: ignore[no-untyped-def]
            y = jnp.tanh(x)
            z = y @ x
            return y, jnp.tanh(z)  # joins the product, but the store of y separates it

        step = jax.jit(step)
        x = np.ones((4, 4), np.float32)
        good = np.asarray(step(x)[1])
        [worker] = [item for item in gc.get_objects() if isinstance(item, Worker)]
        device = worker._machine
        assert isinstance(device, Device)
        backend = device._backend
        assert backend is not None
        [loaded] = [loaded for loaded in worker.chips._programs.values()
                    if loaded.program.entry.name == "jit_step"]
        code = loaded.program.chips[0].cores[0]
        assert [kernel.kind for kernel in code.kernels] == ["tanh", "dot_general+tanh"]
        free = []
        for stamp, line in zip(code.overlays.stamps, ("13", "14 .and <string>:15"), strict=True):
            # The second bundle of a kernel becomes an illegal one; a run that fails loads anew.
            backend.load({0: [(1 << BUNDLE_BITS) - 1]}, stamp // BUNDLE_WORDS + 2)
            with pytest.raises(jax.errors.JaxRuntimeError,
                               match=rf"INTERNAL: jit_step, .*<string>:{line}.*fault ILLEGAL"):
                step(x)[1].block_until_ready()
            np.testing.assert_array_equal(step(x)[1], good)
            last = jax.device_put(np.float32(0))
            last.block_until_ready()
            free.append(device.free_bytes)
            del last
        assert free[0] == free[1]

    run(program, SYSTOLITH_BACKEND=kind)


def test_threads_share_the_chip() -> None:
    def program() -> None:
        import threading

        import jax
        import jax.numpy as jnp
        import numpy as np

        step = jax.jit(lambda x: 2 * x + 1)
        results = {}

        def work(number):  # type: ignore[no-untyped-def]
            with jax.default_device(jax.devices()[number % 2]):
                value = jnp.full((4,), float(number))
                for _ in range(10):
                    value = step(value) - 1
                results[number] = np.asarray(value)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == 6
        for number, value in results.items():
            np.testing.assert_array_equal(value, np.full(4, number * 2.0 ** 10))

    run(program)


def long_program() -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np

    step = jax.jit(lambda x: jax.lax.fori_loop(0, 1_000_000, lambda i, v: jnp.sin(v), x))
    value = step(np.ones(3, np.float32))
    assert not value.is_ready()
    print("runs", flush=True)


def test_a_process_ends_while_the_chip_runs() -> None:
    assert run(long_program) == "runs\n"


@pytest.mark.parametrize("kind", BACKENDS)
def test_interrupts_end_a_wait(kind: str) -> None:
    def program() -> None:
        import jax
        import jax.numpy as jnp
        import numpy as np

        steps = [jax.jit(lambda x: jax.lax.fori_loop(0, 2_000, lambda i, v: jnp.sin(v), x)),
                 jax.jit(lambda x: x + 1)]
        steps[1](np.ones(3, np.float32)).block_until_ready()
        value = steps[0](np.ones(3, np.float32))
        try:
            print("runs", flush=True)
            value.block_until_ready()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        # Whatever was asked for before ends first.
        np.testing.assert_array_equal(steps[1](np.ones(3, np.float32)), [2, 2, 2])

    process = start(program, SYSTOLITH_BACKEND=kind)
    assert process.stdout is not None
    assert process.stdout.readline() == "runs\n"
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, errors
    assert output == "interrupted\n"


def test_interrupts_end_the_wait_for_a_compilation() -> None:
    def program() -> None:
        import gc
        import threading

        import jax
        import numpy as np
        import pytest

        from sim.pjrt import platform

        value = jax.device_put(np.ones(3, np.float32))
        value.block_until_ready()
        [worker] = [item for item in gc.get_objects() if isinstance(item, platform.Worker)]
        compile_program, ends = platform.compile_program, threading.Event()

        def compile_late(*arguments):  # type: ignore[no-untyped-def]
            print("compiles", flush=True)
            ends.wait()
            return compile_program(*arguments)

        platform.compile_program = compile_late
        with pytest.raises(KeyboardInterrupt):
            jax.jit(lambda x: x + 1)(value)
        ends.set()
        step = jax.jit(lambda x: x + 2)
        np.testing.assert_array_equal(step(value), [3, 3, 3])
        # What nobody waited for is gone.
        assert worker.chips.sizes[1] == 1

    process = start(program)
    assert process.stdout is not None
    assert process.stdout.readline() == "compiles\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, errors


def test_forked_children_that_do_not_use_jax_end_as_usual() -> None:
    def program() -> None:
        import os
        import sys
        import warnings

        import jax.numpy as jnp

        warnings.simplefilter("ignore")
        value = jnp.arange(3) + 1
        value.block_until_ready()
        child = os.fork()
        if child == 0:
            sys.exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        assert (value * 2).tolist() == [2, 4, 6]

    run(program)


def test_missing_compiler_is_named() -> None:
    def program() -> None:
        import jax
        import pytest

        with pytest.raises(RuntimeError, match=r"'systolith'.*C\+\+ compiler \(no-such-compiler\)"):
            jax.devices()

    run(program, SYSTOLITH_CXX="no-such-compiler")


@pytest.mark.parametrize(("name", "value", "message"), [
    ("SYSTOLITH_CONFIG", "huge", "huge"), ("SYSTOLITH_BACKEND", "glass", "backend must be one of"),
    ("SYSTOLITH_TRACE", "trace", "trace must be None for the golden backend")])
def test_wrong_settings_are_named(name: str, value: str, message: str) -> None:
    def program() -> None:
        import os

        import jax
        import pytest

        with pytest.raises(RuntimeError, match=os.environ["EXPECTED"]):
            jax.devices()

    run(program, **{name: value, "EXPECTED": message})


def test_the_chip_in_rtl_has_the_bits_of_the_golden_one() -> None:
    def program() -> None:
        import jax
        import jax.numpy as jnp
        import numpy as np

        x = np.linspace(-2, 2, 35, dtype=np.float32).reshape(5, 7)
        value, gradient = jax.jit(jax.value_and_grad(lambda w: jnp.sum(jnp.tanh(x @ w))))(x.T)
        with jax.default_device(jax.devices()[1]):
            powers = jnp.exp(x)
        print(value, *(np.asarray(item).tobytes().hex() for item in (gradient, powers)))

    golden = run(program)
    assert run(program, SYSTOLITH_BACKEND="rtl") == golden
    assert len(golden) > 500
