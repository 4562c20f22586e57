"""Random graphs, compiled and run, against the interpreter."""

from collections.abc import Iterator

import pytest

from sim.compiler.graph.interpret import interpret
from sim.driver.device import Device
from verif.sim.compiler.fuzz import compare, main
from verif.sim.compiler.random_graphs import differences, random_graph


@pytest.fixture(scope="module")
def golden() -> Iterator[Device]:
    with Device.open("tiny", "golden") as device:
        yield device


@pytest.mark.parametrize("seed", range(1, 21))
def test_random_graph(seed: int, golden: Device) -> None:
    assert compare(seed, golden) == []


@pytest.mark.parametrize("seed", range(1, 9))
def test_random_graph_larger_than_vector_memory(seed: int, golden: Device) -> None:
    assert compare(seed, golden, 3, large=True) == []


@pytest.mark.parametrize("seed", range(1, 7))
def test_random_graph_with_exchanges(seed: int, golden: Device) -> None:
    assert compare(seed, golden, 2, exchanges=True) == []


@pytest.mark.slow
def test_random_graphs_on_hardware() -> None:
    with Device.open("tiny", "rtl") as device:
        for seed in range(1, 7):
            assert compare(seed, device) == []
        for seed in range(1, 5):
            assert compare(seed, device, 2, exchanges=True) == []


def test_differences_are_found() -> None:
    random = random_graph(3)
    results = interpret(random.graph, random.inputs)
    assert differences(random, results, results, 0) == []
    index = next(i for i, array in enumerate(results) if array.size)
    wrong = [array.copy() for array in results]
    wrong[index][...] = 1 - (wrong[index] == 1)
    [text] = differences(random, wrong, results, 1e-5)
    assert text.startswith(f"seed 3, output {index} at ")


def test_runner_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tiny", "--seed", "1", "--count", "2"]) == 0
    assert "seeds 1 to 2: 2 graphs agree, 0 are too large, 0 differ" in "".join(capsys.readouterr())
