"""Measure the seconds of every call, and the links between devices, on this machine.

Each distinct call runs alone on one device of each kind, in a loop on that device, so
that the start of a step does not count: its forward pass, then forward and backward
together, with synthetic values. A batch and a quarter of it tell which part of a call's
seconds grows with the batch. Other data are read before each call, and its weights are
charged what they take longer from memory: a step touches more than a cache holds before
it reads a weight again. Reads and updates of as many bytes as the step's show how long.

A link has a latency, a gap and a bandwidth (LogGP). A small tensor goes to the other
device and back several times within one step, and each stop computes with it, as parts
do: how much longer that takes than where nothing is sent is the latency. Of several
tensors at once each further one takes the gap, and of several large ones the time of
their bytes too. How much longer computing takes while copies arrive is the overhead.
"""

import functools
import timeit
from collections.abc import Callable, Iterable, Sequence
from itertools import permutations, product
from statistics import median
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from splitnet.core import costs
from splitnet.core.checks import Positive
from splitnet.core.cluster import Cluster, Device, Link
from splitnet.core.errors import DeviceError
from splitnet.core.graph import Call, grouped
from splitnet.tf.internals import keras_api
from splitnet.tf.placement.device_function import canonical
from splitnet.tf.reading.call_cost import size_of
from splitnet.tf.reading.cloner import Cloner
from splitnet.tf.reading.flatten import Site
from splitnet.tf.reading.read import graph_of, needed_gradients
from splitnet.tf.reading.source import blueprint_of, sized
from splitnet.tf.workers.connect import wait_for_workers

_SMALL, _BLOCKS = 2**12, 16  # bytes of a small weight, and how many large ones
_LARGEST = 2**18, 2**22  # bytes of a large one: a share of what a step touches
_SHARE = 4  # of the batch, for the second time of each call
_OTHER_ELEMENTS = 2**19  # of 4 bytes, read before each call
_LOOP_SECONDS, _MOST_LOOPS = 0.02, 4**5  # a call is repeated until it takes so long
_RUNS = 10  # of each loop; the median counts
_LINK_RUNS = 30
_TRIPS, _COPIES = 4, 4  # there and back, and at once
_LARGE = 2**22  # elements of 4 bytes; starting a smaller copy hides its bytes on a GPU
_BESIDE = (2**18, 0, (0, 60)), (2**18, 8, (0, 60))  # no copies, some, beside products
_Computation = Callable[[], list[Any]]
_BETWEEN = 10  # products of 256 x 256 at each stop of a trip, a few ms of one core


def measure(
    source: Any,
    cluster: Cluster,
    batch: Positive = 32,
    *,
    optimizer: str = "adam",
    on_progress: Callable[[float, str], None] | None = None,
) -> costs.Costs:
    """Time every call of a source on each kind of device, and the links between them.

    `save_costs` keeps the result, for `plan(costs=...)`. The source is left as it was.
    Devices of one kind and speed count as one kind; with workers, the client's CPU is
    left out. Times are those of training.

    Args:
        source: a `Net` or a Keras model.
        cluster: devices that are all available: `local_cluster()`, or workers after
            `connect`.
        batch: samples per step. Calls are timed for it and for a quarter of it; other
            batches, as in micro-batches and towers, follow from both.
        optimizer: whose update is timed, by its name as in `plan`.
        on_progress: called with the share that is done, 0 to 1, and what comes next.

    Raises:
        DeviceError: devices of the cluster are not available.
        DeclarationError: the source cannot be read.
    """
    here = {canonical(d.name) for d in tf.config.list_logical_devices()}
    missing = [d for d in cluster if canonical(d.target) not in here]
    if named := [f"{d.name} ({d.target})" for d in missing]:
        advice = "Use sn.local_cluster(), or join workers by sn.connect(cluster) first."
        raise DeviceError(f"these devices are not available here. {advice}", named)
    optimizer = costs.optimizer_name(optimizer)
    blueprint = blueprint_of(source, "expand")
    graph = graph_of(blueprint, batch)
    jobs: dict[tuple[str, float, float], tuple[Call, Site, Site, list[bool]]] = {}
    sites = blueprint.sites, sized(blueprint, batch).sites
    for site, known, needed in zip(*sites, needed_gradients(blueprint.sites)):
        call = graph.call.get(site.call)
        if call and not site.node.is_input:  # what towers share is estimated
            key = costs.signature(call), call.forward_flops, call.backward_flops
            if key not in jobs or any(needed):
                jobs[key] = call, site, known, needed
    timed = {k: v for k, v in _kinds(cluster).items() if v in cluster.free_devices}
    shares = iter(np.linspace(0, 1, len(timed) * (len(jobs) + 1) + 2).tolist())
    tell = on_progress or (lambda *_: None)
    calls, updates = list[costs.CallSeconds](), list[costs.UpdateSeconds]()
    touched = sum(3 * weight.bytes for weight in graph.weights)  # gradients, sums
    touched += sum(2 * call.output_bytes for call in graph.calls)  # their gradients
    block = 4 * int(np.clip(touched / _BLOCKS, *_LARGEST) / 4)
    for labels, device in timed.items():
        watch = _Stopwatch(device)
        far = _memory_seconds(watch, block)
        for (key, *flops), (call, *how) in jobs.items():
            tell(next(shares), f"{call.name} on {device.name}")
            whole = {*call.weights} - {*call.lookups}
            again = far * sum(graph.weight[name].bytes for name in whole)
            # Weights are read, then read again and their gradients written.
            extra = again, 2 * again * (call.backward_flops > 0)
            cloner = Cloner(lambda _, on=watch.target: on, blueprint.originals)
            took = _call_seconds(cloner, how, watch, batch)
            made = (took + extra).ravel().tolist()
            row = *made, costs.rows_of(call), *flops
            calls += (costs.CallSeconds(key, one, *row) for one in labels)
        tell(next(shares), f"update on {device.name}")
        rows = (_SMALL, 1), (block, _BLOCKS)
        small, large = (watch.seconds(_update(device, optimizer, *n)) for n in rows)
        speed = (block - _SMALL) / max(large / _BLOCKS - small, 1e-9)
        updates += (costs.UpdateSeconds(n, speed, small, optimizer) for n in labels)
    tell(next(shares), "links between devices")
    rows = tuple(calls), tuple(updates), measure_links(cluster)
    tell(next(shares), "done")
    return costs.Costs(*rows, any(d.stand_in for d in cluster), tuple(timed.values()))


def _kinds(cluster: Cluster) -> dict[tuple[str, ...], Device]:
    """One of each sort of equal devices, by its labels: the kind if all are equal."""
    alike = grouped(cluster, lambda d: (d.kind, d.flops_per_second, bool(d.host)))
    found = {}
    for (kind, *_), members in alike.items():
        only = len(members) == len(cluster.of_kind(kind))
        found[(kind,) if only else tuple(d.name for d in members)] = members[0]
    return found


def _usual(seconds: Iterable[float]) -> float:
    """The median, at least 0; other work on the machine lengthens some times."""
    return max(float(median(seconds)), 0.0)


class _Stopwatch:
    """Times what runs on one device, by loops inside of one step."""

    def __init__(self, device: Device) -> None:
        self.target = device.target
        wait_for_workers(ask=True)
        with tf.device(self.target):
            several = [tf.Variable(0.0) for _ in range(16)]
            self.others = tf.Variable(tf.zeros([_OTHER_ELEMENTS]))
        self.idle = self.taken = 0.0
        self.idle = self.seconds(list)
        self.taken = self.seconds(lambda: [v.read_value() for v in several]) / 16

    def seconds(self, compute: _Computation) -> float:
        """Seconds of a computation, without what taking its tensors costs."""
        loop = _Loop(self, compute)
        for _ in range(_RUNS):
            loop.run()
        return loop.seconds()


class _Loop:
    """Times a computation that is repeated within one step, for sizes of its inputs."""

    def __init__(self, stopwatch: _Stopwatch, compute: _Computation) -> None:
        self.stopwatch, self.count = stopwatch, 0
        # By size: how many more rounds a long run has, and what each of them took.
        self.runs: dict[int, tuple[int, list[float]]] = {}

        def body(number: Any, total: Any) -> tuple[Any, Any]:
            total += tf.reduce_max(stopwatch.others.read_value())
            with tf.control_dependencies([total]):
                firsts = [
                    tf.cast(tf.reshape(one, [-1])[0], "float32")
                    for one in tf.nest.flatten(compute(), expand_composites=True)
                    if tf.is_tensor(one) and one.dtype not in (tf.string, tf.variant)
                ]
            self.count = len(firsts)
            return number + 1, tf.add_n([total, *firsts])

        @tf.function(autograph=False)
        def loop(times: Any) -> Any:
            with tf.device(stopwatch.target):
                last = tf.identity(times)  # or every round would ask the client for it
                start = (tf.constant(0), tf.constant(0.0))
                return tf.while_loop(lambda n, _: n < last, body, start)[1]

        self._loop = loop

    def _timed(self, times: int) -> float:
        given = tf.constant(times)
        return timeit.timeit(lambda: self._loop(given).numpy(), number=1)

    def run(self, size: int = 0) -> None:
        """Time it once more; the first time finds out how often it must be repeated."""
        wait_for_workers()
        if size not in self.runs:
            self._timed(1)  # traces
            more, once = 1, self._timed(1)
            while more < _MOST_LOOPS and any(  # other load makes longer, at times
                self._timed(1 + more) - once < _LOOP_SECONDS for _ in range(3)
            ):
                more *= 4
            self.runs[size] = more, []
        more, rounds = self.runs[size]
        rounds.append((self._timed(1 + more) - self._timed(1)) / more)

    def seconds(self, size: int = 0) -> float:
        """Seconds of one computation."""
        taken = self.stopwatch.idle + self.count * self.stopwatch.taken
        return _usual(one - taken for one in self.runs[size][1])


def _call_seconds(cloner: Cloner, call: Any, watch: _Stopwatch, batch: int) -> Any:
    """Seconds forward and backward, and what does not grow.

    `call` is its site, the same with all sizes, and which inputs need gradients.
    """
    site, known, needed = call
    node, target = site.node, watch.target
    tensors, inputs = node.input_tensors, {}
    values = dict(zip(map(id, tensors), synthetic([*known.node.input_tensors], batch)))
    with tf.device(target):
        clone = cloner.of(node.operation)
        cloner.finish()
        operation = keras_api.operation_fn(clone, training=True)
        for tensor in tensors:
            value = values[id(tensor)]
            shape = (None, *value.shape[1:]) if tensor.shape[:1] == (None,) else None
            inputs[id(tensor)] = tf.Variable(value, shape=shape)

    def forward() -> list[Any]:
        given = {key: tf.convert_to_tensor(v) for key, v in inputs.items()}
        args, kwargs = node.arguments.fill_in(given)
        return keras.tree.flatten(operation(*args, **kwargs))

    with tf.device(target):
        forward()  # builds it, here
    wanted = {id(t) for t, one in zip(tensors, needed) if one}
    sources = [v for key, v in inputs.items() if key in wanted and v.dtype.is_floating]
    sources += [one.value for one in getattr(clone, "trainable_variables", ())]

    def both() -> list[Any]:
        with tf.GradientTape() as tape:
            loss = [tf.reduce_sum(t) for t in forward() if t.dtype.is_floating]
        return [g for g in tape.gradient(loss, sources) if g is not None]

    loops = [_Loop(watch, one) for one in (forward, both)[: 1 + bool(sources)]]
    share = max(1, batch // _SHARE)
    # They alternate, so that a busy moment is one of each.
    for _, size in product(range(_RUNS), (batch, share)):
        for key, variable in inputs.items():
            if variable.shape.rank and variable.shape[0] is None:
                variable.assign(values[key][: len(values[key]) * size // batch])
        for loop in loops:
            loop.run(size)

    def seconds(size: int) -> tuple[float, float]:
        once, *more = (loop.seconds(size) for loop in loops)
        return once, max(sum(more) - once, 0.0) if more else 0.0

    whole, part = np.array([seconds(batch), seconds(share)])
    fixed = np.clip(part - (whole - part) * share / max(batch - share, 1), 0.0, whole)
    return np.array([whole, fixed])


def _memory_seconds(stopwatch: _Stopwatch, size: int) -> float:
    """Seconds that a byte takes longer from memory than from a cache."""
    with tf.device(stopwatch.target):
        held = [tf.Variable(tf.zeros([size // 4])) for _ in range(_BLOCKS)]

    def reading(count: int) -> float:
        some = [v.read_value for v in held[:count]]
        return stopwatch.seconds(lambda: [tf.reduce_max(one()) for one in some]) / count

    return max(reading(_BLOCKS) - reading(1), 0.0) / size


def optimizer_of(name: str) -> Any:
    """A new optimizer with the slots that a plan's name tells: "sgd+momentum"."""
    kind, *more = costs.optimizer_name(name).split("+")
    arguments = dict(costs.OPTIMIZER_ARGUMENTS[one][:2] for one in more)
    return type(keras.optimizers.get(kind))(**arguments)


def _update(device: Device, optimizer: str, size: int, count: int) -> _Computation:
    """The update of weights of so many bytes each."""
    with tf.device(device.target):
        weights = [keras.Variable(tf.zeros([size // 4])) for _ in range(count)]
        gradients = [tf.Variable(tf.ones([size // 4])) for _ in weights]
        rule = optimizer_of(optimizer)
        rule.build(weights)

    def update() -> list[Any]:
        for gradient, weight in zip(gradients, weights):
            rule.update_step(gradient.read_value(), weight.value, tf.constant(1e-3))
        return []

    return update


def synthetic_batch(model: Any, batch: int) -> tuple[Any, Any]:
    """Inputs and targets of one step, class numbers of sparse losses: NumPy arrays.

    Whole numbers are 1, which any embedding takes and no mask hides; texts are
    tensors of "a".
    """
    inputs, targets = synthetic((model.input, model.output), batch)
    losses, outputs = getattr(model, "loss", None), model.output
    if not keras.tree.is_nested(losses):
        losses = [losses] * len(model.outputs)
    elif isinstance(losses, dict):
        names = sorted(outputs) if isinstance(outputs, dict) else model.output_names
        losses = [losses.get(name) for name in names]
    flatten, sparse = keras.tree.flatten, keras.losses.sparse_categorical_crossentropy
    each = zip(flatten(targets), map(keras.losses.get, flatten(losses)))
    flat = [t.argmax(-1) if getattr(f, "fn", f) is sparse else t for t, f in each]
    return inputs, keras.tree.pack_sequence_as(targets, flat)


def synthetic(tensors: Any, batch: int) -> Any:
    """Values of the shapes and dtypes of symbolic tensors, in their structure."""
    draw = np.random.default_rng(0)

    def made(tensor: Any) -> Any:
        size = size_of(tensor, batch)
        shape, kind = tuple(size.shape), size.dtype
        if kind == tf.string:
            return tf.fill(shape, "a")
        filled = np.ones if kind.is_integer or kind.is_bool else draw.random
        return filled(shape).astype(kind.as_numpy_dtype)

    return keras.tree.map_structure(made, tensors)


def measure_links(cluster: Cluster) -> tuple[Link, ...]:
    """A link for each ordered pair; ends of one host, kind and speed are equal."""
    wait_for_workers(ask=True)
    keys, steps = {}, {}
    for one, other in permutations(cluster, 2):
        ends = [(d.host, d.kind, d.flops_per_second) for d in (one, other)]
        key = keys[one.name, other.name] = tuple(sorted(ends))
        if key not in steps:
            apart = one.kind == other.kind == "cpu" and one.host != other.host
            ways = (one, one), (other, one), (other, other)
            rows = [*product((1, _LARGE), (1, 1 + _COPIES)), *_BESIDE * apart]
            steps[key] = [
                *(_sent([one, *way * _TRIPS]) for way in ways[:2]),
                *(_sent([w[1], *w * _TRIPS], work=(_BETWEEN, 0)) for w in ways),
                *(_sent([one, other], *row) for row in rows),
            ]
    figures = {}
    for key, runs in steps.items():
        wait_for_workers()
        for run in runs:  # the first run of each takes longer
            run()
        tries = [[timeit.timeit(r, number=1) for r in runs] for _ in range(_LINK_RUNS)]
        times = map(np.array, zip(*tries))
        home, away, ahead, between, behind, small, smalls, large, larges, *more = times
        computing = between - (ahead + behind) / 2
        # On a busy machine computations differ by more than copies take.
        latency = max(_usual(computing), _usual(away - home)) / (2 * _TRIPS)
        gap = min(_usual(smalls - small) / _COPIES, latency)
        each = _usual(larges - large) / _COPIES
        busy = _usual(more[1] - more[0]) / 2**23 if more else 0.0  # bytes beside it
        figures[key] = 4 * _LARGE / max(each - gap, 1e-7), latency, gap, busy
    return tuple(Link(*ends, *figures[key]) for ends, key in keys.items())


def _sent(
    path: Sequence[Device], size: int = 1, copies: int = 1, work: Sequence[int] = (0, 0)
) -> Callable[[], Any]:
    """A step that sends tensors of so many elements along a path, all at once.

    Each stop changes them by a variable of its own, or TensorFlow would join stops. The
    `work` is products of matrices: with them at each stop, and others at the last one.
    """
    (start, *stops), (between, beside) = path, work
    with tf.device(start.target):
        sent = [tf.Variable(tf.ones([size])) for _ in range(copies)]
    matrices = []
    for stop, times in (*((stop, between) for stop in stops), (path[-1], beside)):
        with tf.device(stop.target):
            matrices.append(tf.Variable(tf.eye(256 if times else 1)))

    @tf.function(autograph=False)
    def run() -> Any:
        def multiplied(matrix: Any, scale: Any, times: int) -> Any:
            factor = matrix.read_value()
            return functools.reduce(tf.matmul, [factor] * times, factor * scale)[0, :1]

        with tf.device(path[-1].target):
            ends = [multiplied(matrices[-1], 1.0, beside)]
        for held in sent:
            with tf.device(start.target):
                value = held.read_value()
            for stop, matrix in zip(stops, matrices):
                with tf.device(stop.target):
                    value = multiplied(matrix, value[:1], between)
            ends.append(value)
        with tf.device(path[-1].target):
            return tf.add_n(ends)

    step = run.get_concrete_function()  # TensorFlow warns of many new functions
    return lambda held=(sent, matrices): step().numpy()  # keeps variables
