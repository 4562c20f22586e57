"""``python -m verif.benches [--seed N] [--waves] [BENCH ...]``: runs the benches."""

import argparse
import sys
import time

from verif.benches.runner import BENCHES, SEED, run


def main() -> int:
    """Run the named benches, or all of them; return 1 if any fails."""
    benches = {str(bench): bench for bench in BENCHES}
    parser = argparse.ArgumentParser(prog="python -m verif.benches",
                                     description="Run the cocotb benches.")
    parser.add_argument("bench", nargs="*", metavar="BENCH",
                        help=f"one of {', '.join(benches)}; all by default")
    parser.add_argument("--seed", type=int, default=SEED, help="of all that is random")
    parser.add_argument("--waves", action="store_true", help="write waveforms (dump.vcd)")
    arguments = parser.parse_args()
    for name in arguments.bench:
        if name not in benches:
            parser.error(f"BENCH must be one of {', '.join(benches)}, not {name!r}")
    failed = 0
    for name in arguments.bench or benches:
        start = time.monotonic()
        try:
            passed = run(benches[name], seed=arguments.seed, waves=arguments.waves)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            failed += 1
        else:
            print(f"{name}: {len(passed)} tests passed, seed {arguments.seed}, "
                  f"{time.monotonic() - start:.1f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
