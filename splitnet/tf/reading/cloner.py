"""Copies of layers and functional models, made from configurations."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType, MappingProxyType, MethodType
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.errors import listed, warn
from splitnet.tf.internals import keras_api
from splitnet.tf.internals.keras_api import from_keras, sublayers, variables_of
from splitnet.tf.reading import rebuild
from splitnet.tf.reading.flatten import MODELS, Blueprint, flow_of, run_again

_SHARED = (keras.layers.Layer, keras.random.SeedGenerator)
_RULES = (keras.initializers.Initializer, keras.regularizers.Regularizer)
STEPS = ("train_step", "test_step", "predict_step", "compute_loss", "compute_metrics")


def clone(
    blueprint: Blueprint,
    device_of: Callable[[Any], str | None],
    *,
    copy: bool = True,
    move: bool = True,
    compiled: Mapping[str, Any] = MappingProxyType({}),
) -> Blueprint:
    """Make the model of a blueprint anew, each layer under the device of its weights.

    `move`: layers that are used themselves are moved to their devices, and so a placed
    model that has them. Layers that losses or metrics in `compiled` hold are used so.
    """
    held, more = dict[int, tuple[Any, str]](), True
    with keras_api.random_states_kept():
        while more:
            cloner = Cloner(device_of, blueprint.originals, held, copy=copy)
            model, _ = cloner.model(blueprint.model)
            own = vars(blueprint.model)
            kept = [v for name, v in vars(model).items() if v is own.get(name)]
            kept += [how for name, how in compiled.items() if name != "optimizer"]
            cloner.note_held("the model", rebuild.reached(kept))
            held |= (more := cloner.copied_though_held())
        cloner.finish()
    if move:
        cloner.move_home()
    if told := [f"{name}: {why}" for name, why in cloner.reused.items()]:
        head = "some layers cannot be rebuilt from their configuration, so the source's"
        warn(listed(f"{head} are used{', and moved' if move else ''}.", told))
    flow = flow_of(model, blueprint.flow.nested)
    return blueprint.along(flow, model=model, reused=cloner.reused)


class Cloner:
    """Copies of layers, one each however often a layer is met.

    A copy has the values of its original as soon as it is built; where layers are made
    without memory (`keras_api.without_memory`), it takes them when it gets memory.
    `device_of` gives the TensorFlow device of a layer's weights, or nothing for that of
    what surrounds it; `copy=False` uses layers with values as they are. `originals` has
    the user's layer that a layer of a template stands for, by its id; `held` has layers
    to use as they are and why, by their ids; `reused` says why one is, by its name.
    """

    def __init__(
        self,
        device_of: Callable[[Any], str | None] = lambda layer: None,
        originals: Mapping[int, Any] = MappingProxyType({}),
        held: Mapping[int, tuple[Any, str]] = MappingProxyType({}),
        *,
        copy: bool = True,
    ) -> None:
        self.reused: dict[str, str] = {}
        self._device_of, self._copying = device_of, copy
        self._originals, self._held = originals, held
        self._copies: dict[int, tuple[Any, Any]] = {}  # original and copy
        self._used: list[int] = []  # layers used as they are
        self._filled: set[int] = set()  # copies
        self._holder: dict[int, str] = {}  # what holds a layer or variable, by its id
        for layer, _ in held.values():
            self._use(layer)

    def of(self, operation: Any) -> Any:
        """The copy of a layer, a nested model or a raw operation."""
        if why := self._held.get(id(operation), ("", ""))[1]:
            self.reused[self._source(operation).name] = why
        if id(operation) not in self._copies:
            with self._on(operation):
                self._copy(operation)
        return self._copies[id(operation)][1]

    def call(self, operation: Any, args: Any, kwargs: Any) -> Any:
        """Call the copy of an operation on symbolic tensors, under its device.

        If the copy of a built layer then differs from it, it is used itself.
        """
        with self._on(operation):
            copy, source = self.of(operation), self._source(operation)
            if id(operation) in self._used:
                with keras_api.with_values():
                    return copy(*args, **kwargs)
            if not _is_leaf(operation) or id(copy) in self._filled:
                return copy(*args, **kwargs)
            # Without memory, or values would be held twice; a user's class may look at
            # them while it is built.
            looked_at = hasattr(operation, "adapt") or getattr(operation, "stateful", 0)
            bare = operation.built and not copy.built and not looked_at
            bare = bare and all(map(from_keras, sublayers(operation)))
            try:
                with keras_api.without_values() if bare else contextlib.nullcontext():
                    made = copy(*args, **kwargs)
                    keras_api.with_activations(copy)
                    for its, mine in zip(sublayers(source), sublayers(copy)):
                        if getattr(its, "lora_enabled", 0) and not mine.lora_enabled:
                            mine.enable_lora(its.lora_rank, lora_alpha=its.lora_alpha)
                if source.built:
                    rebuild.check_alike(source, copy)
            except rebuild.NotRebuiltError as error:
                why = str(error)
            except Exception as error:  # whatever a user's layer raises
                plain = not source.built or from_keras(source)
                if plain or keras_api.needs_memory(error):
                    raise
                why = f"a copy cannot be called: {type(error).__name__}"
            else:
                self._fill(operation, copy)
                return made
            self._use(operation, why)
        return self.call(operation, args, kwargs)

    def replay(
        self, model: Any, inputs: Any, call: Callable[..., Any] | None = None
    ) -> tuple[Any, dict[int, Any]]:
        """Call the copies of all operations of a functional model in its own order.

        Returns the outputs in the model's structure, and each old tensor's new one.
        """
        flat = keras.tree.flatten(inputs)
        tensors = {id(old): new for old, new in zip(model.inputs, flat)}
        running = keras_api.nodes_of(model)
        run_again(running, tensors, call or self.call)
        for old in [tensor for node in running for tensor in node.outputs]:
            mask = keras_api.mask_of(old)
            if id(mask) in tensors:
                keras_api.set_mask(tensors[id(old)], tensors[id(mask)])
        return keras.tree.map_structure(lambda t: tensors[id(t)], model.output), tensors

    def model(self, model: Any) -> tuple[Any, dict[int, Any]]:
        """A copy of a functional model, of its class, and its tensor of each old id."""
        inputs = keras.tree.map_structure(input_like, model.input)
        outputs, tensors = self.replay(model, inputs)
        made = functional(model, inputs, outputs, tensors, self.beside)
        keras_api.order_layers(made, model, self._copies)
        return made, tensors

    def beside(self, layer: Any) -> Any:
        """The copy of a layer that the graph may not call, built as it is."""
        copy = self.of(layer)
        if layer.built and not copy.built:
            with self._on(layer):
                copy.build_from_config(layer.get_build_config() or {})
            if _is_leaf(layer):
                self._fill(layer, copy)
        return copy

    def sources(self) -> dict[int, Any]:
        """The layer, nested model or operation that each copy is of, by its id."""
        return {id(copy): self._source(one) for one, copy in self._copies.values()}

    def rename(self) -> list[tuple[Any, Any]]:
        """Name variables of copies as those of originals; returns both layers."""
        made = (pair for n, pair in self._copies.items() if n not in self._used)
        both = [pair for pair in made if _is_leaf(pair[0])]
        for original, copy in both:
            for old, new in zip(variables_of(original), variables_of(copy)):
                keras_api.rename_variable(new, old.name, old.path)
        return both

    def finish(self) -> None:
        """Give copies names, and what layers keep besides variables: vocabularies."""
        for original, copy in self.rename():
            source = self._source(original)
            quiet = () if source.built else (Exception,)  # it may have nothing to save
            with self._on(original), contextlib.suppress(*quiet):
                rebuild.carry_assets(source, copy)  # whose tables are made there

    def note_held(self, name: str, held: Iterable[Any]) -> None:
        """Note the layers and variables that something holds which is not copied."""
        self._holder |= dict.fromkeys(map(id, held), name)

    def copied_though_held(self) -> dict[int, tuple[Any, str]]:
        """Layers that are used, and copied ones that others hold, if any, with why."""
        used, held = dict[int, Any](), dict[int, Any]()
        for number in self._used:
            original, layer = self._copies[number]
            used[number] = original, self.reused.get(layer.name, "")
            self.note_held(repr(layer.name), sublayers(layer))
        for _, copy in self._copies.values():  # with weights of the source's in it
            self.note_held(repr(copy.name), variables_of(copy))
        for number, (original, copy) in self._copies.items():
            source = self._source(original)
            its = [source, *(variables_of(source) if _is_leaf(original) else ())]
            gone = {*map(id, its)} - {*map(id, variables_of(copy))}
            if number not in used and (found := gone & self._holder.keys()):
                by = self._holder[found.pop()]
                held[number] = original, f"{by} holds it, or its weights"
        return used | held if held else {}

    def move_home(self) -> None:
        """Move variables, as of layers that others hold, to the innermost's device."""
        pairs = list(reversed(self._copies.values()))
        homes = dict[int, tuple[Any, str | None]]()
        for one, layer in sorted(pairs, key=lambda pair: -len(sublayers(pair[1]))):
            own = (*variables_of(layer), *getattr(layer, "metrics_variables", ()))
            stays = isinstance(layer, keras.layers.TFSMLayer)  # its function holds them
            homes |= {id(v): (v, None if stays else self._device_of(one)) for v in own}
        if keras_api.move_values((v, on) for v, on in homes.values() if on):
            for _, one in pairs:
                rebuild.forget_traces(one)  # with variables at their old place

    def _copy(self, operation: Any) -> None:
        """Make the copy of an operation, or use it as it is."""
        if not isinstance(operation, keras.layers.Layer):
            copy = keras_api.without_nodes(operation)
        elif not self._copying and self._has_values(operation):
            return self._use(operation)
        elif type(operation) is keras.Sequential:
            if first := [input_like(t) for t in getattr(operation, "inputs", ())]:
                self.replay(keras_api.functional_inside(operation), first)
            layers = [*first, *map(self.beside, operation.layers)]
            copy = keras.Sequential(layers, operation.trainable, operation.name)
        elif isinstance(operation, keras_api.Functional):
            copy, _ = self.model(operation)
        else:
            source = self._source(operation)
            self.note_held(repr(source.name), held := rebuild.held_elsewhere(source))
            try:
                copy = rebuild.rebuilt(source, held)
                copy.autocast = source.autocast  # which no configuration has
                if not source.built:
                    rebuild.check_alike(source, copy)
            except rebuild.NotRebuiltError as error:
                return self._use(operation, str(error))
            self._share_parts(operation, copy)
            if not operation.built:  # seeds
                self._fill(operation, copy)
        self._copies[id(operation)] = operation, copy
        return None

    def _share_parts(self, original: Any, copy: Any) -> None:
        """Let a copy hold the copies of the layers and seeds that its original holds.

        Else a dense layer that is called, and wrapped by `TimeDistributed` as well,
        would become two. A configuration may have a layer itself: it is copied too.
        """
        known = self._copies
        known[id(original)] = (original, copy)

        def joined(one: Any, other: Any) -> Any:
            if isinstance(one, list) and isinstance(other, list):
                list.__init__(other, [*map(joined, one, other), *other[len(one) :]])
            elif isinstance(one, dict) and isinstance(other, dict):
                for key in filter(other.__contains__, one):
                    dict.__setitem__(other, key, joined(one[key], other[key]))
            elif isinstance(one, tuple) and isinstance(other, tuple):
                mixed = (*map(joined, one, other), *other[len(one) :])
                return getattr(other, "_make", tuple)(mixed)
            elif type(one) is type(other) and isinstance(one, _SHARED):
                return known[id(one)][1] if id(one) in known else shared(one, other)
            elif isinstance(one, _RULES):
                return one  # of initializers each draws its seed when it is made
            elif isinstance(one, FunctionType) and isinstance(other, FunctionType):
                own = from_keras(original) and one.__code__ != other.__code__
                return one if own else other  # a name may be another's too
            return other

        def shared(one: Any, other: Any) -> Any:
            layers = sublayers(one)
            met = isinstance(one, MODELS) and any(id(la) in known for la in layers)
            if met or (layers and other is self._source(one)):
                return self.of(one)
            for mine, its in zip(layers or [one], sublayers(other) or [other]):
                leaf = type(mine) is type(its) and not isinstance(mine, MODELS)
                if leaf and id(mine) not in known:
                    self._share_parts(mine, its)
            return other

        joined(vars(original), vars(copy))

    def _use(self, layer: Any, why: str = "") -> None:
        """Use a layer as it is; one that a function made is this model's, and new."""
        source = self._source(layer)
        if why and self._has_values(layer):
            self.reused[source.name] = why
        with self._on(layer):
            for variable in variables_of(source):
                if not keras_api.has_value(variable):
                    keras_api.copy_value(variable, variable)  # now it gets memory
        self._copies[id(layer)] = layer, source
        self._used.append(id(layer))
        for one in source.layers if isinstance(source, MODELS) else ():
            if id(one) not in self._copies:
                self._use(one)

    def _fill(self, original: Any, copy: Any) -> None:
        """Give a copy the values its original has or would have; freeze it alike."""
        learned = set(map(id, keras_api.weights_of(copy)))
        for old, new in zip(variables_of(original), variables_of(copy)):
            # A tape never watches a variable that was made frozen, thawed or not.
            new.trainable |= id(new) in learned
            keras_api.copy_value(new, old)
            new.trainable = old.trainable
            new.regularizer, new.constraint = old.regularizer, old.constraint
        keras_api.freeze_alike(copy, original)
        self._filled.add(id(copy))

    def _source(self, operation: Any) -> Any:
        return self._originals.get(id(operation), operation)

    def _has_values(self, layer: Any) -> bool:
        """Whether the layer that an operation stands for has, or will have, memory."""
        return all(map(keras_api.has_value, variables_of(self._source(layer))))

    def _on(self, layer: Any) -> Any:
        device = self._device_of(layer)
        return tf.device(device) if device else contextlib.nullcontext()


def _is_leaf(one: Any) -> bool:
    return isinstance(one, keras.layers.Layer) and not isinstance(one, MODELS)


def input_like(tensor: Any) -> Any:
    """A new symbolic input like this one."""
    layer = keras_api.producer(tensor).operation
    own = {"name": layer.name, "optional": getattr(layer, "optional", False)}
    own |= {"dtype": tensor.dtype, "sparse": tensor.sparse, "ragged": tensor.ragged}
    return keras.Input(batch_shape=tensor.shape, **own)


# Attributes that Keras sets when a model is compiled, trained or called.
_TRANSIENT = ("history", "loss", "optimizer")
_TRANSIENT += ("stop_evaluating", "stop_predicting", "stop_training")
_KERAS = ("_compile", "_eval_epoch", "_saved_model", "_self_", "_splitnet", "_symbolic")


def functional(
    model: Any,
    inputs: Any,
    outputs: Any,
    tensors: Mapping[int, Any] | None = None,
    copy_of: Callable[[Any], Any] = lambda layer: layer,
) -> Any:
    """A functional model of the same class and name, over other tensors.

    It has the model's attributes that are not Keras' own, with these tensors by the ids
    of the old ones, and layers as `copy_of` gives them.
    """
    made = type(model).__new__(type(model))
    keras_api.read_all(inputs)
    keras_api.Functional.__init__(made, inputs, outputs, name=model.name)
    keras_api.take_settings(made, model)
    known = dict(zip(map(id, model.inputs), made.inputs)) | dict(tensors or {})

    def copied(value: Any) -> Any:
        """A copy of what belongs to the model; anything else as it is."""
        if isinstance(value, dict):
            return {key: copied(item) for key, item in value.items()}
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            kind = list if isinstance(value, list) else tuple  # Keras wraps them
            return kind(map(copied, value))
        if isinstance(value, keras.KerasTensor):
            return known.get(id(value), value)
        if isinstance(value, keras.layers.Layer):
            return copy_of(value)
        if isinstance(value, MethodType) and value.__self__ is model:
            return MethodType(value.__func__, made)
        with keras_api.with_values():
            if isinstance(value, keras.metrics.Metric | keras.optimizers.Optimizer):
                return rebuild.remade(value)
            if isinstance(value, keras.Variable):
                for owner in filter(variables_of, model.layers):
                    for its, mine in zip(*map(variables_of, (owner, copy_of(owner)))):
                        if its is value:
                            return mine
                how = {n: getattr(value, n) for n in ("dtype", "trainable", "name")}
                return keras.Variable(tf.identity(value.value), **how)
        return value

    own = vars(model)
    if "_auto_config" in own:  # what __init__ was given: saved in place of the graph
        vars(made)["_auto_config"] = own["_auto_config"]
    for name, value in own.items():
        if name in vars(made) or name in _TRANSIENT or name.startswith(_KERAS):
            continue
        bound = isinstance(value, MethodType) and "_splitnet" not in own
        if not hasattr(type(model), name) or (name in STEPS and bound):
            setattr(made, name, copied(value))
    return made
