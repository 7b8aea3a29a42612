"""Are impossible calls, command lines and files refused in words, and at once?

- api: calls of public functions with one argument that it cannot take.
- cli: command lines with one word that is out of place, in this process.
- files: plan, graph, cluster, cost and workload files with one value replaced, removed
  or added.

A refusal is a `SplitnetError`, for a command line an exit code of 1 or 2 and a line on
standard error; in words, without control characters. Anything else that is raised and a
call of more than 20 seconds are faults. What is accepted is counted, and shown with
--accepted for a person to judge.

    python benchmarks/bad_calls.py [api] [cli] [files] [--count N] [--seed 0]
        [--accepted]

Ends with 1 if there was any fault.
"""

import argparse
import collections
import contextlib
import io
import json
import os
import random
import re
import signal
import sys
import tempfile
import warnings
from math import inf, nan
from pathlib import Path

JUNK = (
    *(None, True, -1, 0, 1.5, nan, inf, 10**400, 2**63, 1e308, "", "no such", "gpu:9"),
    *("\x1b[2J", "\ud800", "a\0b", b"bytes", [], {}, [None], {"a": 1}, {3: 3}),
    *(object(), int, print, range(3)),
)
WORDS = (
    *("", "-1", "0", "1.5", "nan", "inf", "1e400", "9" * 5000, "no such", "gpu:9"),
    *("\x1b[2J", "\udc80", "/", "/dev/zero", "/dev/null", "..", "{plan}", "{broken}"),
    *("2*gpu,cpu", "*=gpu:9", "=", "99999999*gpu", "{pipe}"),
)
VALUES = (
    *(None, True, -1, 0, 0.5, 2**63, 10**400, 1e308, inf, nan, "", "gpu:0", "\ud800"),
    *("\x1b[2J", [], {}, [3], [[1]], [True], {"a": 1}, [["a", "b", "c"]], "1 GiB"),
)
COUNTS = {"api": 300, "cli": 160, "files": 10_000}
SECONDS = 20
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


@contextlib.contextmanager
def limited():
    """Raise TimeoutError in this block after some seconds."""

    def late(number, frame):
        raise TimeoutError(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def readable(text):
    """Raise AssertionError if a message is empty or could harm a terminal."""
    if not text.strip() or CONTROL.search(text):
        raise AssertionError(f"a refusal that cannot be read: {text[:200]!r}")


def outcome(call):
    """Call; returns "refused" or "accepted", or raises what is a fault."""
    import splitnet as sn

    with limited(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call()
        except sn.SplitnetError as error:
            readable(str(error))
            return "refused"
    return "accepted"


def api_calls(draw, folder):
    """Calls of public functions, each with one argument replaced."""
    import keras
    import numpy as np
    from keras import layers

    import splitnet as sn
    from splitnet.core.costs import Costs

    box, here = sn.Cluster.of("2*gpu", "cpu"), sn.local_cluster(stand_in_gpus=2)

    def declare(verb="branch", **more):
        """A net with one declaration of a kind, read at once."""
        net = sn.Net("small")
        x = net.input("x", (4,))
        left = net.branch("left", x, layers.Dense(3), on="gpu:0")
        right = net.branch("right", x, layers.Dense(3), on="gpu:1")
        net.output(net.merge("join", [left, right], layers.Add()))
        usual = {"x": x, "left": left, "both": [left, right]}
        more = {
            n: usual.get(v, v) if isinstance(v, str) else v for n, v in more.items()
        }
        if more:
            made = getattr(net, verb)(**more)
            if verb == "input":
                made = net.branch("reads", made, layers.Flatten())
            if verb != "output":
                net.output(made)
        sn.read(net, 4)
        return net

    net = declare()
    graph = sn.read(net, 8)
    plan = sn.plan(graph, box, time_limit=0.1)
    made = sn.plan(net, here, batch=8, time_limit=0.1)
    model = sn.emit(net, made)
    model.compile("sgd", "mse")
    batch = np.ones((8, 4), "float32"), np.ones((8, 3), "float32")
    audit = sn.audit(model, made, batch)
    plain = keras.Sequential([keras.Input((4,)), layers.Dense(3), layers.Dense(2)])
    dense = layers.Dense(3)
    search = {
        "objective": "latency",
        "pins": None,
        "missing": "fallback",
        "costs": None,
    }
    search |= {"optimizer": "adam", "time_limit": 0.05, "effort": 9, "training": True}
    search |= {"contiguity": "free", "seed": 1, "cut_penalty": 0.1, "regroup": False}
    search |= {"batch": 8, "nested": "keep", "on_progress": None}
    known = Costs(stand_ins=True)
    cost = {name: search[name] for name in ("batch", "objective", "costs", "optimizer")}
    out = folder / "out"
    branch = {"verb": "branch", "name": "b", "inputs": "x", "body": dense}
    calls = {
        sn.Net: {"name": "n"},
        declare: branch | {"on": "cpu", "near": "left", "apart": None},
        (declare, "input"): {"verb": "input", "name": "i", "shape": (3,)}
        | {"dtype": "float32"},
        (declare, "merge"): branch
        | {"verb": "merge", "inputs": "both"}
        | {"body": layers.Add()},
        (declare, "towers"): branch
        | {"verb": "towers", "on": ["gpu:0", "gpu:1"], "weights_on": "cpu"}
        | {"join_on": "cpu", "batch_norm": "per_tower"},
        (declare, "split"): {"verb": "split", "name": "s", "inputs": "x"}
        | {"layer": dense, "on": ["gpu:0", "gpu:1"], "join_on": "cpu"},
        (declare, "output"): {"verb": "output", "ref": "left", "name": "o"},
        sn.Device.of: {"name": "gpu:0", "memory": "1 GiB", "speed": 1e12}
        | {"bandwidth": None, "overhead": 0, "preset": "A100", "target": None},
        sn.Device: {"name": "cpu:0", "target": "/device:CPU:0"}
        | {"memory_bytes": 9, "flops_per_second": 1e9, "bytes_per_second": 1e9},
        sn.Link: {"source": "gpu:0", "target": "cpu:0", "bytes_per_second": 1e9}
        | {"latency_seconds": 0.0, "gap_seconds": None},
        (lambda name, **more: sn.Cluster.of(name, "cpu", **more), "Cluster.of"): {
            **{"name": "gpu", "memory": "1 GiB", "link": "1 GB/s", "latency": 0},
            **{"speed": None, "preset": "T4", "cpu_memory": None},
        },
        sn.Cluster: {"devices": box.devices, "links": box.links, "hosts": ()},
        sn.Cluster.load: {"path": "no.toml"},
        box.without: {"name": "gpu:0"},
        box.__getitem__: {"name": "gpu:0"},
        box.of_kind: {"kind": "gpu"},
        sn.read: {"source": plain, "batch": 4, "nested": "keep"},
        sn.plan: search | {"source": graph, "cluster": box},
        sn.place: search | {"source": plain, "cluster": here},
        sn.score: cost
        | {"source": graph, "cluster": box, "device_of": plan.device_of}
        | {"training": True, "nested": "keep"},
        sn.largest_batch: {"source": graph, "cluster": box, "device_of": None}
        | {"pins": None, "optimizer": "sgd", "training": True, "most": 64},
        sn.compare_strategies: {"plan": plan},
        sn.sensitivity: {"plan": plan, "draws": 2, "perturbation": 0.1},
        sn.simulate: {"plan": plan, "microbatches": 2, "schedule": "gpipe"}
        | {"recompute": False},
        sn.load_plan: {"path": "no.json"},
        plan.save: {"path": out},
        plan.__getitem__: {"name": "left"},
        plan.explain: {"name": "left"},
        plan.compare: {"other": plan},
        sn.read_workload: {"path": "no.json"},
        sn.save_costs: {"costs": known, "path": out},
        sn.draw: {"thing": plan, "path": folder / "a.dot", "other": None}
        | {"what": "placement", "dpi": 96},
        sn.table: {"thing": plan, "width": 80},
        sn.chart: {"timeline": plan.timeline, "width": 80},
        sn.report: {"thing": plan, "path": out, "measured": None, "audit": audit},
        sn.trace: {"thing": plan, "path": out, "measured": None},
        sn.emit: {"source": net, "plan": made, "microbatches": 2, "schedule": "1f1b"}
        | {"recompute": False, "xla": False, "copy": True},
        sn.audit: {"model": model, "plan": made, "batch": batch},
        sn.data_parallel: {"model": plain, "cluster": here, "devices": 2, "batch": 8}
        | {"weights_on": "cpu", "batch_norm": "per_tower"},
        sn.measure: {"source": plain, "cluster": here, "batch": 2, "optimizer": "sgd"},
        sn.profile_step: {"model": model, "batch": batch, "steps": 1},
        sn.plan_of: {"model": model},
        sn.summary: {"model": model},
        sn.unplace: {"model": model},
        sn.placement_scope: {"model": model},
        sn.local_cluster: {"stand_in_gpus": 2},
        sn.local_workers: {"count": "two", "threads": 1, "memory_limit": "1 GB"},
        sn.connect: {"cluster": box, "wait_seconds": 0.1, "watch_seconds": 1.0},
        sn.configure: {"soft_placement": True, "log_placement": False},
    }
    while True:
        key, arguments = draw.choice(list(calls.items()))
        function = key[0] if isinstance(key, tuple) else key
        name = draw.choice([n for n in arguments if n != "verb"])
        value = draw.choice(JUNK)
        if callable(value) and name in (
            "body",
            "layer",
            "pins",
            "on_progress",
            "source",
        ):
            continue  # a function of the user's, which raises what it likes
        title = key[1] if isinstance(key, tuple) else function.__qualname__
        if len(arguments) == 1:
            yield f"{title}({value!r})", lambda f=function, v=value: f(v)
            continue
        changed = arguments | {name: value}
        yield f"{title}({name}={value!r:.60})", lambda f=function, c=changed: f(**c)


COMMANDS = (
    "devices --stand-ins 2",
    "plan {graph} --cluster 2*gpu,cpu --time-limit 0.1 --seed 1 --json",
    "plan {graph} --gpus 2 --preset A100 --memory 1GiB --link 1GB/s --time-limit 0.1",
    "plan {plan} --pin left=gpu:1 --missing fallback --time-limit 0.1",
    "plan {graph} --cluster {cluster} --optimizer sgd --out {out} --time-limit 0.1",
    "plan {program}:net --stand-ins 2 --batch 8 --time-limit 0.1",
    "plan {workload} --contiguity free --time-limit 0.1 --json",
    "estimate {graph} --gpus 2 --preset T4 --time-limit 0.1",
    "score {graph} {plan} --gpus 2 --objective latency",
    "score {workload} {placement} --json",
    "draw {plan} --out {out}.svg --other {plan}",
    "draw {plan} -o {out}.dot --calls left --timeline",
    "report {plan} -o {out}.html",
    "simulate {plan} --microbatches 2 --schedule gpipe --trace {out}.json",
    "audit {program}:net --stand-ins 2 --loss mse --batch 8 --optimizer sgd",
    "audit {program}:net --plan {plan} --loss mse",
    "measure {program}:nothing --out {out} --batch 2 --optimizer sgd",
    "config --check",
    "run --gpus none --cpu-threads 2 {script} 3",
    "demo --epochs 0 --gpus 2 --out {out}",
    "worker --cluster {cluster} --index 7 --threads 1",
    "cluster health {cluster}",
    "cluster up --workers no --threads 1 -- true",
)
PROGRAM = """
from keras import layers
import splitnet as sn

def net():
    net = sn.Net("small")
    x = net.input("x", (4,))
    left = net.branch("left", x, layers.Dense(3), on="gpu:0")
    right = net.branch("right", x, layers.Dense(3), on="gpu:1")
    net.output(net.merge("join", [left, right], layers.Add()))
    return net

nothing = 3
"""
CLUSTER = 'link = "25 GB/s"\n[[device]]\nname = "gpu:0"\nmemory = "1 GiB"\n'
CLUSTER += '[[device]]\nname = "gpu:1"\n[[device]]\nname = "cpu:0"\n[[links]]\n'
CLUSTER += 'between = ["gpu:0", "*"]\n[hosts]\n"worker:0" = "127.0.0.1:1"\n'


def saved(folder):
    """A file of each kind: name -> path, and kind -> plain values."""
    import splitnet as sn
    from splitnet.core.cluster import Cluster, Link
    from splitnet.core.costs import CallSeconds, Costs, UpdateSeconds, save_costs
    from splitnet.core.graph import Call, Graph, Part, Tensor, Weights
    from splitnet.core.serialization import encode

    box = Cluster.of("2*gpu", "cpu")
    names, ends = ("x", "left", "right", "join"), ("xl", "xr", "lj", "rj")
    long = {name[0]: name for name in names}
    size = {"output_bytes": 2**20, "forward_flops": 1e9, "backward_flops": 2e9}
    one = {"output_shapes": ((32, 64),), "output_dtypes": ("float32",)} | size
    graph = Graph(
        "small",
        32,
        tuple(Call(n, n, "Dense", weights=(f"{n}/w",), **one) for n in names),
        tuple(Tensor(long[a], long[b], bytes=2**20) for a, b in ends),
        tuple(Weights(f"{n}/w", 2**20) for n in names),
        tuple(
            Part(n, on=(d,)) for n, d in zip(names, ("cpu", "gpu:0", "gpu:7", "cpu"))
        ),
        ("join",),
    )
    node = {"cpuLatency": 1.0, "fpgaLatency": 0.5, "size": 2.0, "supportedOnFpga": 1}
    workload = {
        "nodes": [{"id": i} | node | {"isBackwardNode": 0} for i in range(3)],
        "edges": [{"sourceId": 0, "destId": 1, "cost": 0.1}],
        **{"maxFPGAs": 2, "maxCPUs": 1, "maxSizePerFPGA": 100.0},
    }
    paths = {
        name: str(folder / name)
        for name in ("out", "cluster.toml", "program.py", "script.py", "pipe")
    }
    files = ("graph", "plan", "workload", "broken", "placement", "costs")
    paths |= {name: str(folder / f"{name}.json") for name in files}
    sn.plan(graph, box, time_limit=0.1).save(paths["plan"])
    table = Costs(
        (CallSeconds("left", "gpu", 0.5, 1.0),),
        (UpdateSeconds("gpu", 1e9),),
        (Link("gpu:0", "gpu:1", 1e9, 1e-5),),
    )
    save_costs(table, paths["costs"])
    values = {n: json.loads(Path(paths[n]).read_text()) for n in ("plan", "costs")}
    values |= {"graph": encode(graph), "workload": workload}
    for name, text in {
        "graph": json.dumps(values["graph"]),
        "workload": json.dumps(workload),
        "broken": "{ not",
        "placement": '{"0": "gpu:0", "1": "gpu:1", "2": "cpu:0"}',
        "cluster.toml": CLUSTER,
        "program.py": PROGRAM,
        "script.py": "import sys; print(sys.argv)",
    }.items():
        Path(paths[name]).write_text(text)
    os.mkfifo(paths["pipe"])
    return {name.partition(".")[0]: path for name, path in paths.items()}, values


def command_lines(draw, folder):
    """Calls of the command line, each with one word replaced, removed or added."""
    import splitnet as sn
    from splitnet.cli import main

    paths, _ = saved(folder)

    def call(words):
        said, noise = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(noise):
            code = main(words)
        if code == 0:
            return
        text = noise.getvalue() or (said.getvalue() if code == 1 else "")
        if code not in (1, 2, 130) or "Traceback" in text or not text.strip():
            raise AssertionError(f"exit code {code}: {text[-300:]}")
        if not text.startswith("Usage: "):  # the parser repeats words as they came
            readable(text)
        raise sn.SplitnetError("refused")

    while True:
        words = draw.choice(COMMANDS).split()
        place = draw.randrange(1, len(words))
        junk = draw.choice(WORDS)
        what = draw.random()
        if words[0] == "cluster" and place == 1:
            continue
        if words[0] == "run" and (place not in (2, 4) or what >= 0.7):
            continue  # might run another file, which raises what it likes
        if what < 0.7:
            words[place] = junk
        elif what < 0.85:
            del words[place]
        else:
            words.insert(place, junk)
        words = [re.sub(r"{(\w+)}", lambda m: paths[m[1]], word) for word in words]
        if "up" in words and "no" not in words or "/" in words and "--out" in words:
            continue  # would start workers; would write where tests may not
        yield " ".join(words)[:300], lambda words=words: call(words)


def mutated(values, draw):
    """The same values with one of them, at any depth, replaced, removed or added."""
    copy = json.loads(json.dumps(values))
    place = copy
    while True:
        key = draw.choice(list(place) if isinstance(place, dict) else range(len(place)))
        inner = place[key]
        if isinstance(inner, dict | list) and inner and draw.random() < 0.8:
            place = inner
            continue
        what = draw.random()
        if what < 0.7:
            place[key] = draw.choice(VALUES)
        elif what < 0.85 or isinstance(place, list):
            del place[key]
        else:
            place[draw.choice(("x", "\x1b", "batch"))] = draw.choice(VALUES)
        return copy


def broken_files(draw, folder):
    """Loading of files with one value changed; what loads is used."""
    import splitnet as sn
    from splitnet.core.costs import load_costs
    from splitnet.core.graph import Graph
    from splitnet.core.serialization import decode, load_file

    paths, values = saved(folder)
    box = sn.Cluster.of("2*gpu", "cpu")
    graph = load_file(paths["graph"], "graph", lambda v: decode(v, Graph, "graph"))
    uses = {
        "plan": lambda path: sn.table(sn.load_plan(path)),
        "costs": lambda path: sn.score(
            graph, box, {"*": "gpu:0"}, costs=load_costs(path)
        ),
        "graph": lambda path: sn.score(
            load_file(path, "graph", lambda v: decode(v, Graph, "graph")),
            box,
            {"*": "cpu:0"},
        ),
        "workload": lambda path: sn.plan(*sn.read_workload(path), time_limit=0.01),
        "cluster": lambda path: sn.score(graph, sn.Cluster.load(path), {"*": "gpu:0"}),
    }
    number = 0
    while True:
        kind = draw.choice(list(uses))
        number += 1
        path = folder / f"changed.{'toml' if kind == 'cluster' else 'json'}"
        if kind == "cluster":
            letters = list(CLUSTER)
            for _ in range(draw.randint(1, 4)):
                letters[draw.randrange(len(letters))] = draw.choice('"[]=\n-9eé\x00#*')
            text = "".join(letters)
        else:
            text = json.dumps(mutated(values[kind], draw))
        path.write_text(text)
        yield f"{kind} {number}", lambda kind=kind, path=path: uses[kind](path)


MODES = {"api": api_calls, "cli": command_lines, "files": broken_files}


def faults_of(mode, given):
    """Make the calls of a mode, print faults, and return how many there were."""
    found = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        calls = MODES[mode](random.Random(given.seed), Path(folder))
        for _ in range(given.count or COUNTS[mode]):
            title, call = next(calls)
            try:
                kind = outcome(call)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # SystemExit, too, is no answer
                kind = "fault"
                print(f"  {title}: {type(error).__name__}: {error!s:.300}", flush=True)
            found[kind] += 1
            if kind == "accepted" and given.accepted:
                print(f"  accepted: {title}", flush=True)
        os.chdir("/")
    print(f"{mode}, seed {given.seed}: {dict(found)}", flush=True)
    return found["fault"]


def main():
    """Make calls of some modes, or of all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=[*MODES, []], nargs="*")
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--accepted", action="store_true")
    given = parser.parse_args()
    return sum(faults_of(mode, given) for mode in given.mode or MODES) > 0


if __name__ == "__main__":
    sys.exit(main())
