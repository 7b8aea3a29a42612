"""What every benchmark shares: the heading of a table, and fair pairs of times."""

import contextlib
import os
import platform
import shlex
import statistics
import sys
import time
from pathlib import Path


def heading(question):
    """Print the question with machine, versions and command: no row without them."""
    from importlib.metadata import version

    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    versions = ", ".join(f"{p} {version(p)}" for p in ("tensorflow", "keras"))
    print(question)
    print(
        f"  machine   {len(os.sched_getaffinity(0))} x {cpu}, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    print(f"  versions  Python {platform.python_version()}, {versions}")
    name = Path(sys.argv[0])
    place = f"{name.parent.name}/{name.name}"
    print(f"  command   python {place} {shlex.join(sys.argv[1:])}".rstrip(), flush=True)


def paired(one, other, *, rounds):
    """Seconds of two functions called in turn, as they give them or as they took.

    What runs first alternates, so that neither always follows the other.
    """
    seconds = ([], [])
    for turn in range(rounds):
        order = (0, 1) if turn % 2 else (1, 0)
        for which in order:
            began = time.perf_counter()
            given = (one, other)[which]()
            took = time.perf_counter() - began
            seconds[which].append(given if isinstance(given, float) else took)
    return seconds


@contextlib.contextmanager
def undisturbed(*processes):
    """Run this program and those processes before all others, where that is allowed.

    A machine that others use shows their work in every time. Says what it did.
    """
    raised = []
    try:
        for process in (os.getpid(), *processes):
            for thread in os.listdir(f"/proc/{process}/task"):
                with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                    os.sched_setscheduler(int(thread), os.SCHED_RR, os.sched_param(1))
                    raised.append(int(thread))
    except PermissionError:
        print("  note      measured at ordinary priority", flush=True)
    try:
        yield
    finally:
        for thread in raised:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def spread(values):
    """Median and the middle half: "1.83 (1.80 to 1.85)"."""
    low, middle, high = quartiles(values)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def quartiles(values):
    """Lower quartile, median, upper quartile."""
    if len(values) < 2:
        return (values[0],) * 3
    return tuple(statistics.quantiles(values, n=4, method="inclusive"))


def order_of(rows):
    """A line on the order of things predicted: (name, predictions, quartiles) each.

    Two things have an order where all predictions agree on one, such as those of costs
    measured twice, and where the middle halves of what was measured lie apart.
    """
    wrong, apart = [], []
    for number, (name, predicted, (low, middle, high)) in enumerate(rows):
        for other, its, (its_low, its_middle, its_high) in rows[:number]:
            order = middle - its_middle
            if all((a - b) * order < 0 for a, b in zip(predicted, its)):
                wrong.append(f"{name} and {other}")
                if low > its_high or its_low > high:
                    apart.append(wrong[-1])
    if not wrong:
        return "order right"
    if not apart:
        return f"order right beyond the spread ({', '.join(wrong)} measured alike)"
    return f"order wrong: {', '.join(apart)}"


def quiet(limit=0.7, patience=120):
    """Wait until little else runs here; says so if that does not happen."""
    cores = len(os.sched_getaffinity(0))
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        before = _busy()
        time.sleep(1.0)
        if _busy() - before < limit * cores * 0.5:
            return True
    print("  note      other programs kept this machine busy", flush=True)
    return False


def _busy():
    """Processor seconds that all programs here have used."""
    first = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    ticks = [int(field) for field in first]
    idle = ticks[3] + ticks[4]
    return (sum(ticks[:8]) - idle) / os.sysconf("SC_CLK_TCK")


def step_times():
    """A callback whose `seconds` are those between the ends of the steps of `fit`."""
    import keras

    class StepTimes(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seconds, self._last = [], 0.0

        def on_epoch_begin(self, epoch, logs=None):
            self._last = 0.0

        def on_train_batch_end(self, batch, logs=None):
            now = time.perf_counter()
            if self._last:
                self.seconds.append(now - self._last)
            self._last = now

    return StepTimes()
