"""Does anything overlap in 300 random nets of 3 to 400 branches on 1 to 32 devices?

Each is laid out by Graphviz, and its boxes, texts, labels and frames are compared. The
tests do the same with a dozen.

    python benchmarks/layouts.py [--nets 300]

Ends with 1 if any net has a fault.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.view.layouts import layout_faults, layout_of, random_plan


def main() -> int:
    """Lay the nets out, and print each fault and the slowest layout."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", type=int, default=300)
    slowest = faulty = 0.0
    count = parser.parse_args().nets
    for seed in range(count):
        plan = random_plan(seed)
        start = time.perf_counter()
        faults = layout_faults(layout_of(plan))
        slowest = max(slowest, time.perf_counter() - start)
        faulty += bool(faults)
        size = f"{len(plan.graph.parts)} branches, {len(plan.cluster)} devices"
        for fault in faults:
            print(f"net {seed} ({size}): {fault}", flush=True)
    print(f"{count} nets, {faulty:.0f} with faults; slowest layout {slowest:.1f} s")
    return int(faulty > 0)


if __name__ == "__main__":
    sys.exit(main())
