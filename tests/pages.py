"""Run pages' Python, and examples, each one program in a process of its own.

    python tests/pages.py FOLDER PAGE.md EXAMPLE.py ...

TensorFlow and splitnet take seconds to import and are the same for every program, so
they are imported once and the process forks for each, before any device exists. A
program runs in FOLDER/its name, each `fit` is of a few batches and each search of a few
steps, each measurement is one run, and what a page's blocks of output show must be in
what it printed. Prints per program "ok" or what went wrong, and its processor time.
"""

import gc
import json
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS = 2
EFFORT = 200_000  # steps of a search that is given no effort, a fifth of a second
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_OUTPUT = re.compile(r"^```output\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def program_of(page: Path) -> str:
    """The Python blocks of a page, or code cells, at the lines where they stand."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        sources = ("".join(c["source"]) for c in cells if c["cell_type"] == "code")
        return "\n".join(sources)
    if page.suffix == ".py":
        return text
    lines = [""] * (text.count("\n") + 1)
    for block in _BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(1))
        for number, line in enumerate(block[1].splitlines(), first):
            lines[number] = line
    return "\n".join(lines)


def run(page: Path, folder: Path) -> int:
    """Run a page in this process, output in `folder`; 0 if it went well, unwarned."""
    os.chdir(folder)
    screen = os.open("output.txt", os.O_CREAT | os.O_WRONLY, 0o644)
    os.dup2(screen, 1)
    os.dup2(screen, 2)
    warnings.simplefilter("error", UserWarning)
    try:
        exec(compile(program_of(page), str(page), "exec"), {"__name__": "__main__"})
    except BaseException:  # a page may end in any way; each is told
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def main(folder: Path, pages: list[Path]) -> int:
    """Run each page in a fork of this process; 1 if one failed."""
    import keras
    import sklearn.datasets  # noqa: F401  # once for all programs

    import splitnet
    from splitnet.core.plan import PlanOptions
    from splitnet.planner.engine.solve import warm_up
    from splitnet.tf.profiling import measure

    for name in splitnet.__all__:
        getattr(splitnet, name)
    warm_up()
    PlanOptions.__init__.__kwdefaults__["effort"] = EFFORT
    keras.Model.fit = for_few_steps(keras.Model.fit)
    measure._RUNS, measure._LINK_RUNS, measure._LOOP_SECONDS = 1, 2, -1.0
    measure._LARGE = 1_000
    gc.freeze()  # a million objects, which no fork needs to look at
    gc.set_threshold(100_000, 50)
    failed = 0
    for page in pages:
        own = folder / page.stem
        own.mkdir(parents=True, exist_ok=True)
        sys.stdout.flush()
        # Python 3.12 warns of forks beside threads; here they idle in a library.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
        if child == 0:
            os._exit(run(page, own))
        _, status, used = os.wait4(child, 0)
        bad = os.waitstatus_to_exitcode(status)
        printed = (own / "output.txt").read_text(encoding="utf-8")
        verdict = printed[-3000:] if bad else not_printed(page, printed) or "ok"
        failed |= verdict != "ok"
        seconds = used.ru_utime + used.ru_stime
        print(f"{page}: {verdict}\n  {seconds:.1f} s of processor")
    return failed


def for_few_steps(fit: Callable[..., Any]) -> Callable[..., Any]:
    """Keras' `fit` of the first few of the batches that are given."""
    from keras import tree

    def short_fit(model: Any, *data: Any, **options: Any) -> Any:
        def few(values: Any) -> Any:
            return tree.map_structure(lambda each: each[:count], values)

        rest = options.get("validation_split", 0)
        count = round(STEPS * options.get("batch_size", 32) / (1 - rest))
        if "validation_data" in options:
            options["validation_data"] = few(options["validation_data"])
        return fit(model, *few(data), **options | {"epochs": 1})

    return short_fit


def not_printed(page: Path, printed: str) -> str:
    """Say which output the page shows that it did not print; "" if none."""
    shown = _OUTPUT.findall(page.read_text(encoding="utf-8"))
    missing = [text for text in shown if text not in printed]
    return f"does not print\n{missing[0]}but\n{printed[-3000:]}" if missing else ""


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), [Path(name).resolve() for name in sys.argv[2:]]))
