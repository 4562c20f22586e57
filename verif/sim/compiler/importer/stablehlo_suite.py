"""Runs the tests of StableHLO's own interpreter on the golden chip, and checks their results.

    .venv/bin/python -m verif.sim.compiler.importer.stablehlo_suite PATH/stablehlo/tests/interpret

``PATH`` is a checkout of the public repository ``openxla/stablehlo``. Its test functions have
constants as operands, and check the results with operations of MLIR's dialect ``check``. Here the
constants become arguments, so that the compiler cannot fold them, and the host checks the results.
"""

import argparse
import pathlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import systolith
from sim.compiler.graph.ir import DType
from sim.compiler.importer.attributes import array_of
from sim.compiler.importer.module import read

__all__ = ["Case", "Check", "cases_of", "main", "outcome"]

_CHECK = re.compile(
    r"check\.expect_(eq|almost_eq)_const\s+(%[\w#]+),\s*(dense<.*?>)\s*"
    r"(?:,\s*tolerance\s*=\s*([\d.eE+-]+)\s*)?:\s*(tensor<[^>]*>)\n", re.DOTALL)
_TOLERANCE = 1e-4
"""Largest absolute error in a check that is not exact, if the check names no other tolerance."""
_SIGNATURE = re.compile(r"func\.func (?:public )?@(\w+)\(\)\s*\{")
_OTHER_TYPES = re.compile(r"tensor<[^>]*?(f64|f16|i64|i4|i2|f8\w+|f6\w+|f4\w+|complex|quant)")


@dataclass(frozen=True)
class Check:
    """An expected result.

    Attributes
    ----------
    exact : bool
        Whether the result must equal the value.
    value, type : str
        The value and its type, as MLIR texts.
    tolerance : float
        Largest absolute error of a result that need not be equal.
    """

    exact: bool
    value: str
    type: str
    tolerance: float


@dataclass(frozen=True)
class Case:
    """A test: its name, the text of a program, and a check of each of the program's results."""

    name: str
    text: str
    checks: tuple[Check, ...]


def cases_of(text: str, name: str, *, narrow: bool = False) -> Iterator[Case]:
    """Yield the tests in a file's text, except those for several devices.

    Without ``narrow``, only tests are yielded whose types the chip has. With it, only tests with
    64-bit types are yielded; these types become types of 32 bits. ``name`` is the file's name.
    """
    for part in text.split("// -----"):
        for header in _SIGNATURE.finditer(part):
            end = part.find("\n}", header.start())
            body = part[header.end():end + 1]
            others = _without_tests(part[:header.start()] + part[end + 2:])
            if "run_parallel" in body or _has_other_types(body) != narrow:
                continue
            if narrow:
                body, others = _narrowed(body), _narrowed(others)
            checks = list(_CHECK.finditer(body))
            if not checks or len(checks) != body.count("check.") or _has_other_types(body):
                continue
            values, types = (", ".join(check[group] for check in checks) for group in (2, 5))
            body = re.sub(r"(?:func\.)?return\s*\n", "", _CHECK.sub("", body))
            yield Case(
                f"{name}:{header[1]}", f"func.func @main() -> ({types}) {{{body}"
                f"func.return {values} : {types}\n}}\n{others}",
                tuple(Check(check[1] == "eq", check[3], check[5], float(check[4] or _TOLERANCE))
                      for check in checks))


def _narrowed(text: str) -> str:
    """Return a program with types of 32 bits instead of 64."""
    return re.sub(r"(?<=[x<])(f|u?i)64\b", r"\g<1>32", text)


def _has_other_types(text: str) -> bool:
    """Return whether a program has values of types that the chip does not have.

    The types of attributes that are tensors do not count.
    """
    return bool(_OTHER_TYPES.search(re.sub(r"\w+ ?= ?dense<[^>]*> : tensor<[^>]*>", "", text)))


def _without_tests(text: str) -> str:
    """Return a file's text without the functions that check results."""
    return re.sub(r"func\.func (?:public )?@\w+\(\)\s*\{.*?\n\}", lambda found: (
        "" if "check." in found[0] else found[0]), text, flags=re.DOTALL)


def _arguments(module: Any) -> list[np.ndarray]:
    """Turn the constants in ``module``'s function ``main`` into arguments; return their values."""
    from jaxlib.mlir import ir

    [main] = [each for each in module.body.operations
              if str(each.attributes["sym_name"]) == '"main"']
    [block] = main.regions[0].blocks
    values = []
    with module.context, ir.Location.unknown():
        for operation in list(block.operations):
            if operation.operation.name == "stablehlo.constant":
                [result] = operation.operation.results
                if str(result.type.element_type) in ("i64", "ui64"):
                    continue  # Added by `read`.
                values.append(_value(operation.operation.attributes["value"], result.type))
                result.replace_all_uses_with(block.add_argument(result.type, ir.Location.unknown()))
                operation.operation.erase()
        main.operation.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(
            [argument.type for argument in block.arguments], main.type.results))
    return values


def _value(attribute: Any, type: Any) -> np.ndarray:
    kind = str(type.element_type)
    return np.array(array_of(attribute, tuple(type.shape),
                             DType({"i1": "i1", "si32": "i32"}.get(kind, kind))))


def _expected(check: Check) -> np.ndarray:
    module = read(f"func.func @main() -> {check.type} {{ "
                  f"%0 = stablehlo.constant {check.value} : {check.type}\n"
                  f"func.return %0 : {check.type} }}")
    return _arguments(module)[0]


def outcome(case: Case, device: systolith.Device, *, folded: bool = False) -> str:
    """Compile and run a test; return its outcome as text.

    The text begins with "pass", "differs", "refused" or "no program". The test's constants become
    arguments, unless ``folded`` is set. A test that the compiler refuses is tried again with
    ``folded`` set.
    """
    try:
        module = read(case.text)
        wanted = [_expected(check) for check in case.checks]
    except ValueError:
        return "no program with 32-bit types"
    values = [] if folded else _arguments(module)
    try:
        program = systolith.compile(module, device.config)
        found = program(*values, device=device)
    except NotImplementedError as error:
        return outcome(case, device, folded=True) if not folded else f"refused: {error}"
    results = found if isinstance(found, tuple | list) else [found]
    for check, expected, result in zip(case.checks, wanted, map(np.asarray, results), strict=True):
        tolerance = 0 if check.exact else check.tolerance
        if not np.allclose(result.astype(np.float64), expected.astype(np.float64), rtol=0,
                           atol=tolerance, equal_nan=True):
            return f"differs: {result.tolist()}, not {expected.tolist()}"
    return "pass (with constants)" if folded else "pass"


def main(arguments: list[str] | None = None) -> int:
    """Run all tests below a folder; print those that do not pass, and count the outcomes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--narrow", action="store_true", help=(
        "the tests with 64-bit types instead, with 32-bit types in their place"))
    parser.add_argument("--config", default="tiny")
    options = parser.parse_args(arguments)
    counts: Counter[str] = Counter()
    with systolith.Device.open(options.config, "golden") as device:
        for path in sorted(options.folder.rglob("*.mlir")):
            for case in cases_of(path.read_text(), path.stem, narrow=options.narrow):
                reason = outcome(case, device)
                counts[reason.partition(":")[0]] += 1
                if reason.startswith(("differs", "refused")):
                    print(f"{case.name}: {reason}", flush=True)
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
