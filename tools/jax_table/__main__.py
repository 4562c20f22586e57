"""Run JAX's functions on the golden chip, and write docs/jax-api.md.

    python -m tools.jax_table [--only PATTERN] [--limit SECONDS]

Results are kept in build/jax-api.json. The command runs the functions that have no result yet or,
with `--only`, all functions whose name matches PATTERN, a regular expression, whether they have a
result or not. It writes the page once every function has a result.
"""

import argparse
import json
import pathlib
import re

from tools.jax_table.run import functions, run
from tools.jax_table.write import text

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main() -> None:
    """Run the functions, keep their results, and write the page if every function has a result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="regular expression for functions to run again")
    parser.add_argument("--limit", type=float, default=120,
                        help="time limit of a function, in seconds")
    options = parser.parse_args()
    kept = ROOT / "build" / "jax-api.json"
    kept.parent.mkdir(exist_ok=True)
    known = {name: tuple(rest) for name, *rest in json.loads(kept.read_text())} \
        if kept.exists() else {}
    names = functions()
    wanted = [name for name in names
              if (re.search(options.only, name) if options.only else name not in known)]
    for name, status, reason in run(wanted, options.limit):
        known[name] = status, reason
        kept.write_text(json.dumps([(name, *known[name]) for name in names if name in known]))
        print(f"{name}: {status} {reason if status != 'works' else ''}", flush=True)
    if set(names) <= set(known):
        (ROOT / "docs" / "jax-api.md").write_text(text({name: known[name] for name in names}))


if __name__ == "__main__":
    main()
