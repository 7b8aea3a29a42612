"""Pipelines: the batch in micro-batches, each on its way through the parts.

Each part is traced once in a step and called once per micro-batch. On each device
control dependencies keep the calls in the order of `simulator/microbatch`, which draws
the schedules; TensorFlow's executor overlaps what is on different devices. The loss is
the mean over samples, so each counts by its share of the batch; gradients are summed as
they come, on the device that made them. Metrics see the outputs of the whole batch.
"""

import contextlib
import functools
import math
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import Any

import keras
import networkx as nx
import numpy as np
import tensorflow as tf

from splitnet.core.errors import DeclarationError, listed, warn
from splitnet.simulator.microbatch import Pipeline, runs_of
from splitnet.tf.internals import keras_api
from splitnet.tf.parallel.towers import Shards, is_split
from splitnet.tf.placement.device_function import device_of
from splitnet.tf.placement.part_gradient import not_inlined
from splitnet.tf.placement.placed import Placed, Shared
from splitnet.tf.reading.call_cost import cost_of, size_of
from splitnet.tf.reading.flatten import MODELS, is_sparse
from splitnet.tf.reading.read import fixed_batches
from splitnet.tf.reading.source import blueprint_of

_Unit = tuple[int, str]
"""A segment that runs as a part: the segment's id and the part's key."""
_Waits = tuple[int, list[_Unit], list[_Unit]]
"""A window in micro-batches, what ends a stage, and its first units with weights."""
_SPECTRAL = keras.layers.SpectralNormalization
_MEANS = ("sum_over_batch_size", "mean", "auto")
_OF_BATCHES = ("dice", "tversky", "cosine_similarity")  # losses that may be no mean
_TOGETHER = ("combines samples", "adds a loss that is no mean over samples")
_PADS = "pads texts to the longest of their batch"  # which masks make up for
# Layers of code, and the most weights times positions of one that is tried.
_CODE = (keras.layers.Lambda, keras.Model)
_LONGEST = 1e9


def pipelined(model: Any, placed: Placed) -> None:
    """Replace an emitted model's training step by one over micro-batches."""
    stages = _stages(placed)

    @tf.autograph.experimental.do_not_convert  # by a `tf.function` of the user's own
    def train_step(data: Any) -> Any:
        placed.shared.append(Shared(_Turns(stages)))
        try:
            return _train_step(model, placed, data)
        finally:
            placed.shared.pop()

    vars(model)["train_step"] = train_step


def _train_step(model: Any, placed: Placed, data: Any) -> Any:
    """As `keras.Model.train_step`, micro-batch by micro-batch."""
    shared = placed.shared[-1]
    x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
    first = next(t for t in keras.tree.flatten(x) if t is not None)
    rows = Shards(tf.shape(first)[0], placed.pipeline.microbatches)
    cut = (_split(rows, data) for data in (x, y, weights))
    turns, variables = shared.turns, model.trainable_weights
    own = {(id(v), device_of(v)): v for v in variables}
    scale = getattr(model.optimizer, "scale_loss", lambda loss: loss)
    losses, outputs = [], []
    for one_x, one_y, one_weights, share in zip(*cut, rows.weights()):
        # As Keras counts: by samples if it knows how many, else by batches.
        turns.weight = share * (first.shape[0] or 1)
        with tf.GradientTape() as tape:
            turns.begin(tape, shared.weights)
            with keras_api.penalties_summed([model]):
                made = model(one_x, training=True)
            loss = keras_api.loss_computer(model)(one_x, one_y, made, one_weights, True)
            part = tf.cast(share, loss.dtype)
            loss *= part
            for one in model.losses:
                if one.shape.rank:  # a number for each sample, which Keras adds up
                    added = tf.cast(tf.reduce_sum(one), loss.dtype)
                    loss += (tf.sign(part) - part) * added
            scaled = scale(loss)
        asked = (list(own.values()), list(shared.weights.values()))
        for keys, found in zip((own, shared.weights), tape.gradient(scaled, asked)):
            turns.add(dict(zip(keys, found)))
        outputs.append(made)
        losses.append(loss)
    tracker = keras_api.loss_tracker(model)
    tracker.update_state(tf.add_n(losses), sample_weight=rows.extent)
    if variables:
        model.optimizer.apply_gradients(zip(turns.total(variables), variables))
    joined = keras.tree.map_structure(lambda *parts: rows.join(parts), *outputs)
    return model.compute_metrics(x, y, joined, sample_weight=weights)


def _split(rows: Shards, data: Any) -> list[Any]:
    """A nest of tensors, or None, for each micro-batch."""
    flat = keras.tree.flatten(data)
    each = [[t] * rows.count if t is None else rows.split(t) for t in flat]
    return [keras.tree.pack_sequence_as(data, [*its]) for its in zip(*each)]


def _stages(placed: Placed) -> dict[_Unit, _Waits]:
    """What calls that begin a stage wait for; a stage is what a device calls in turn.

    If it has several calls, they wait for those that end it for the micro-batch before.
    They also wait for the backward calls of its first weights, for the micro-batch that
    is `window` before. The last of several stages does not: backward is ready at once,
    and a thread would run what waits for one another in one go, and send nothing.
    """
    units: nx.DiGraph[_Unit] = nx.DiGraph()
    learning, stage_of, made_by = set[_Unit](), {}, dict[int, list[_Unit]]()
    for segment in (runner.segment for runner in placed.runners):
        for key in placed.keys(segment.nodes[0]):
            unit = (id(segment), key)
            if (stage := placed.pipeline.stage_of.get(placed.part_of[key])) is None:
                continue
            if any(keras_api.weights_of(node.operation) for node in segment.nodes):
                learning.add(unit)
            stage_of[unit] = stage
            units.add_node(unit)
            for tensor in segment.reads:
                units.add_edges_from((one, unit) for one in made_by.get(id(tensor), ()))
            for tensor in segment.gives:
                made_by.setdefault(id(tensor), []).append(unit)
    found: dict[_Unit, _Waits] = {}
    for number, run in runs_of(units, stage_of):
        learns = learning & set(run)
        window = placed.pipeline.window(number)
        if not all(units.out_degree(unit) for unit in run):  # it makes an output
            window = placed.pipeline.microbatches if placed.pipeline.depth > 1 else 1
        begin = [unit for unit in run if not run.in_degree(unit)]
        end = [unit for unit in run if not run.out_degree(unit)]
        learn = [unit for unit in learns if not nx.ancestors(run, unit) & learns]
        found |= dict.fromkeys(begin, (window, end if begin != end else [], learn))
    return found


class _Turns:
    """The turns that micro-batches take in each stage, and their gradients' sums.

    Gradients of a variable are summed on each device that reads it, from which one sum
    goes home: `sums` are by (id of a variable, device). `tape` records the present
    micro-batch, which counts by `weight` in metrics.
    """

    def __init__(self, waits: Mapping[_Unit, _Waits]) -> None:
        self.sums: dict[tuple[int, str], Any] = {}
        self.tape: Any = None
        self.weight: Any = None
        self._waits = waits
        # For each micro-batch, a tensor that each unit returned, forward and backward.
        self._ran: list[tuple[dict[_Unit, Any], dict[_Unit, Any]]] = []

    def begin(self, tape: Any, weights: Mapping[Any, Any]) -> None:
        """The next micro-batch, with the weights that earlier ones have read."""
        self.tape = tape
        tape.watch(list(weights.values()))
        self._ran.append(({}, {}))

    def before(self, unit: _Unit) -> list[Any]:
        """What must have run before a segment runs as a part."""
        window, ends, learns = self._waits.get(unit, (1, [], []))
        found = [self._ran[-2][0].get(end) for end in ends if len(self._ran) > 1]
        if len(self._ran) > window:
            found += [self._ran[-1 - window][1].get(one) for one in learns]
        return [tensor for tensor in found if tensor is not None]

    def ran(self, unit: _Unit, made: Any, *, back: bool = False) -> None:
        """Note what a segment returned, forward or backward."""
        tensors = tf.nest.flatten(made, expand_composites=True)
        self._ran[-1][back][unit] = next((t for t in tensors if t is not None), None)

    def add(self, gradients: Mapping[tuple[int, str], Any]) -> None:
        """Add gradients to those of earlier micro-batches; None stays out.

        One function adds those of a device: Grappler is slow on a long step.
        """
        dense: dict[str, dict[tuple[int, str], Any]] = {}
        for key, gradient in gradients.items():
            both = self.sums.get(key), gradient
            if all(isinstance(one, tf.Tensor) for one in both):
                dense.setdefault(key[1], {})[key] = both
            elif gradient is not None:
                with tf.device(key[1]):
                    self.sums[key] = gradient if both[0] is None else _added(*both)
        for device, pairs in dense.items():
            given = list(pairs.values())
            specs = tf.nest.map_structure(  # unnamed, so that stages alike share
                lambda one: tf.TensorSpec(one.shape, one.dtype), given
            )
            with tf.init_scope():  # without the devices of the step that is made
                added = _gradient_sums.get_concrete_function(specs)
            with tf.device(device):
                self.sums |= dict(zip(pairs, added(given)))

    def total(self, variables: list[Any]) -> list[Any]:
        """The gradient of the whole batch, for each variable."""
        found = []
        for variable in variables:
            parts = [s for (which, _), s in self.sums.items() if which == id(variable)]
            with tf.device(device_of(variable)):
                found.append(functools.reduce(_added, parts) if parts else None)
        return found


@not_inlined
def _gradient_sums(pairs: list[tuple[Any, Any]]) -> list[Any]:
    return [one + other for one, other in pairs]


def _added(one: Any, other: Any) -> Any:
    """The sum of two gradients; of two sparse ones, sparse."""
    if isinstance(one, tf.IndexedSlices) and isinstance(other, tf.IndexedSlices):
        both = (one.values, other.values), (one.indices, other.indices)
        return tf.IndexedSlices(*(tf.concat(each, 0) for each in both), one.dense_shape)
    return tf.convert_to_tensor(one) + tf.convert_to_tensor(other)


def check_pipeline(model: Any, pipeline: Pipeline) -> None:
    """Refuse a model that cannot be cut, and warn of what micro-batches change."""
    head, why = f"microbatches={pipeline.microbatches}:", "a state for each sample"
    stateful = (o for o in keras_api.sublayers(model) if getattr(o, "stateful", False))
    faults = [f"layer {o.name!r} keeps {why} of a whole batch" for o in stateful]
    ends = (*model.inputs, *model.outputs)
    faults += [f"{end.name!r} is a sparse tensor" for end in ends if is_sparse(end)]
    faults += [f"{end.name!r} has no axis of samples" for end in ends if not end.shape]
    own = keras_api.own_steps(model)
    faults += [f"{type(model).__qualname__} has a {name} of its own" for name in own]
    if faults:
        what = f"{head} model {model.name!r} cannot be cut; use microbatches=1."
        raise DeclarationError(listed(what, faults))
    calls = ((n.operation.name, _fault(n)) for n in keras_api.nodes_of(model))
    if found := [" ".join(pair) for pair in calls if pair[1]]:
        what = f"{head} {', '.join(found[:6])}"
        warn(f"{what}, here those of a micro-batch, which trains another model.")
    if masked := _masked(model, keras_api.nodes_of(model)):
        warn(
            f"{head} the mask of {', '.join(masked[:6])} reaches the loss, which is a "
            "mean over what each micro-batch leaves, so training is that of the whole "
            "batch only where all leave alike."
        )


def _masked(model: Any, nodes: Iterable[Any]) -> list[str]:
    """The outputs that hand a mask to their losses; layers inside others make some."""
    reached = set[int]()
    for node in nodes:
        one = node.operation
        made = any(map(keras_api.makes_mask, keras_api.sublayers(one)[1:]))
        read = not reached.isdisjoint(map(id, node.input_tensors))
        if made or read and getattr(one, "supports_masking", False):
            reached.update(id(one) for one in node.outputs if len(one.shape) > 2)
    reached.update(id(t) for t in model.outputs if keras_api.mask_of(t) is not None)
    return [n for n, t in zip(model.output_names, model.outputs) if id(t) in reached]


def check_losses(model: Any, placed: Placed) -> None:
    """Refuse a loss that is not a mean over samples; weight the metrics of losses.

    Each micro-batch counts by its share there. Keras makes them with the first outputs.
    Normalizations may have been frozen or thawed since the model was made.
    """
    head = f"microbatches={placed.pipeline.microbatches}:"
    for name in _sums(model):
        raise DeclarationError(
            f"{head} loss {name!r} of a batch is not the mean of its samples' losses, "
            f"which micro-batches need; use such a loss, with reduction={_MEANS[0]!r}, "
            "or microbatches=1."
        )
    spectral = (o for o in keras_api.sublayers(model) if isinstance(o, _SPECTRAL))
    if norms := [one.name for one in (*keras_api.norms_of(model), *spectral)]:
        warn(
            f"{head} {', '.join(norms[:6])} will normalise anew for each micro-batch "
            "and change with each, so training is not that of the whole batch; a "
            "frozen BatchNormalization does neither."
        )
    if (loss := keras_api.compiled_loss(model)) is None:
        return
    plainly = loss.build

    def build(*args: Any) -> None:
        plainly(*args)
        for metric in loss.metrics:

            def update(value: Any, sample_weight: Any = None, to: Any = metric) -> None:
                weight = placed.shared[-1].turns.weight if placed.shared else None
                weight = sample_weight if weight is None else weight
                type(to).update_state(to, value, sample_weight=weight)

            vars(metric)["update_state"] = update

    vars(loss)["build"] = build


def warn_of_towers(model: Any, placed: Placed) -> None:
    """Warn of what combines samples in towers, and of norms that they cannot reach."""
    for node in placed.flow.nodes:
        towers, layer = placed.replicas.get(id(node)), node.operation
        if towers and (why := _fault(node)):
            what = f"{layer.name!r} {why}, here those of a tower"
            warn(f"towers: {what}, which trains another model.")
        if towers and towers.synchronised and {*keras_api.norms_of(layer)} - {layer}:
            into = f"batch_norm='synchronised' cannot reach into {layer.name!r}"
            why = "whose BatchNormalization is thawed: each tower normalises its share"
            warn(f"{into}, {why}. Freeze it again, and compile.")


def _fault(node: Any) -> str:
    """What a call does to samples together, by its axes, cost or a trial; or ""."""
    one, inputs, outputs = node.operation, node.input_tensors, node.outputs
    if not any(map(is_split, inputs)):
        return ""
    if isinstance(one, MODELS):
        return next(filter(None, map(_fault, keras_api.nodes_of(one))), "")
    if isinstance(one, keras.layers.TextVectorization) and None in outputs[0].shape[1:]:
        masked = [getattr(o, "mask_zero", False) for o in keras_api.readers_of(one)]
        return "" if outputs[0].ragged or masked and all(masked) else _PADS
    its = keras_api.sublayers(one)
    if any(getattr(layer, "call_training_endpoint", None) for layer in its):
        return "may keep averages of samples"  # by a function that was loaded
    raw, name = not isinstance(one, keras.layers.Layer), type(one).__name__
    axes = [] if raw else keras.tree.flatten(getattr(one, "axis", ()))
    axes = [n % max(1, len(inputs[0].shape)) for n in axes if isinstance(n, int)]
    along, found = 0 in axes or name in ("CutMix", "MixUp"), None
    code = raw or any(isinstance(o, _CODE) or keras_api.runs_own_code(o) for o in its)
    if code and not along:
        with contextlib.suppress(Exception):  # it may take other values
            found = _tried(node)
    whole = [t for t in outputs if not is_split(t)]
    if whole and (raw or found is None):
        work, other = (cost_of(node, batch) for batch in (2, 3))
        along |= work != other or bool(work.saves_inputs)  # not of a shape alone
    return found or _TOGETHER[0] * along


def _tried(node: Any) -> str | None:
    """What a call does to two unlike samples; None if that is not known for sure."""
    one, tensors, args = node.operation, node.input_tensors, []
    states = keras_api.states_of(one)
    work = max(100, math.prod(size_of(node.outputs[0], 1).shape[:-1]))
    work *= sum(math.prod(weight.shape) for weight in keras_api.variables_of(one))
    sizes, random = [size_of(t, 2) for t in tensors], np.random.default_rng(0)
    if work + sum(10 * math.prod(size.shape) for size in sizes) > _LONGEST:
        return None
    for size in sizes:
        some = random.random(size.shape)
        args.append(tf.cast(some if size.dtype.is_floating else some > 0.5, size.dtype))

    known = (*states, keras_api.seed_of_all())
    seeds = [v for v in known if "seed" in getattr(v, "path", "")]
    drawn = list[Any]()  # seeds that it changes

    def made(*rows: int) -> list[Any]:
        cut = (tf.gather(v, rows) if is_split(t) else v for t, v in zip(tensors, args))
        known, training = dict(zip(map(id, tensors), cut)), not states
        scope = keras.StatelessScope(collect_losses=True, initialize_variables=False)
        with scope, keras_api.penalties_summed([one]):
            keras_api.run_node(node, known, {"training": training})
        drawn.extend(v for v in seeds if scope.get_current_value(v) is not None)
        losses = [loss for loss in scope.losses if not loss.shape.rank]
        return [*(known[id(tensor)] for tensor in node.outputs), *losses]

    joins = [np.concatenate if is_split(t) else None for t in node.outputs]
    runs = [made(0, 1), made(0, 1)]
    if drawn:  # the same each time, though one sample alone would get others
        for join, both, *same in zip(joins, runs[0], made(0, 0), made(1, 1)):
            rows = (_alike(both[i], twice[i]) for i, twice in enumerate(same))
            if join and not all(rows):
                return _TOGETHER[0]
        return None
    try:
        runs += [made(0), made(1)]
    except Exception:  # an index of the other, or a size that one alone has not
        return _TOGETHER[0]
    for join, both, again, *each in zip_longest(joins, *runs, fillvalue=np.mean):
        each = [join(each)] if join else each
        if _alike(both, again) and not all(_alike(both, one) for one in each):
            return _TOGETHER[join is np.mean]
    return "" if all(map(_alike, *runs[:2])) else None


def _alike(one: Any, other: Any) -> bool:
    """Whether two arrays are equal to rounding."""
    part = 1e-3 if one.dtype.size > 2 else 0.03
    one, other = (np.asarray(value, complex) for value in (one, other))
    most = part * np.abs(one[np.isfinite(one)]).max(initial=0.0)
    return one.shape == other.shape and np.allclose(one, other, rtol=0.0, atol=most)


def _sums(model: Any) -> list[str]:
    """The names of a compiled model's losses that are no means over samples."""
    found = []
    for one in filter(None, keras.tree.flatten(getattr(model, "loss", None))):
        loss = keras.losses.get(one)
        inner = getattr(loss, "fn", loss)
        name = getattr(inner, "__name__", "")
        tried = not keras_api.from_keras(inner) or name in _OF_BATCHES
        means = getattr(loss, "reduction", _MEANS[0]) in _MEANS and name != "circle"
        means &= getattr(loss, "ignore_class", None) is None  # else of those that count
        if not means or tried and not all(_is_mean(loss, o) for o in model.outputs):
            found.append(getattr(loss, "name", name))
    return found


def _is_mean(loss: Any, output: Any) -> bool:
    """Whether a loss of two unlike samples is the mean of each one's, if known."""
    size = (2, *(length or 3 for length in output.shape[1:]))
    made = tf.reshape(tf.linspace(0.1, 0.9, math.prod(size)), size)
    classes = tf.reshape(tf.repeat([[0], [1]], math.prod(size[1:-1]), 1), size[:-1])
    for targets in (tf.random.stateless_uniform(size, (0, 0)), classes):
        with contextlib.suppress(Exception):  # it may take other ones, of any kind
            rows = (slice(2), slice(1), slice(1, 2))
            both, *each = (np.mean(loss(targets[i], made[i])) for i in rows)
            return bool(np.isclose(both, np.mean(each), rtol=1e-3, equal_nan=True))
    return True


def obstacles_of(source: Any, nested: str = "keep") -> dict[str, str]:
    """Why it has no other "batch", or trains another way in micro-batches or towers."""
    model = (blueprint := blueprint_of(source, nested)).model
    found = {"batch": "its size is fixed"} if fixed_batches(model) else {}

    def note(why: str, *names: str) -> None:
        for name in names or ("microbatches", "towers"):
            found.setdefault(name, why)

    for tensor in (*model.inputs, *model.outputs):
        name = keras_api.producer(tensor).operation.name
        if tuple(tensor.shape[:1]) != (None,):
            note(f"the first axis of {name!r} is no batch of any size")
    for name in _masked(model, [site.node for site in blueprint.sites]):
        note(f"{name!r} hands a mask to its loss", "microbatches")
    for site, node in ((one, one.node) for one in blueprint.sites):
        if any(map(is_sparse, node.input_tensors)):
            note(f"{site.call!r} reads a sparse tensor")
        if why := _fault(node):  # towers share one call of what no GPU can run
            note(f"{site.call!r} {why}", *["microbatches"] * (why == _PADS))
        for layer in (layers := keras_api.sublayers(node.operation)):
            if layer in keras_api.norms_of(layer):
                note(f"{layer.name!r} would see each by itself", "microbatches")
                if layer is not node.operation:
                    note(f"{layer.name!r} is inside of another layer", "towers")
            elif isinstance(layer, _SPECTRAL):
                note(f"{layer.name!r} divides its kernel for each", "microbatches")
        own = [keras_api.states_of(o) for o in layers if not keras_api.from_keras(o)]
        if any("seed" not in v.name for v in sum(own, [])) and cost_of(node, 2).assigns:
            note(f"{site.call!r} has a state that its calls change")
    for name in keras_api.own_steps(source) if isinstance(source, keras.Model) else ():
        note(f"the model has a {name} of its own", "microbatches")
    for name in _sums(source):
        note(f"loss {name!r} is no mean over samples", "microbatches")
    return found
