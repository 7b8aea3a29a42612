"""What micro-batches would make other than the whole batch: refused, or warned of."""

from typing import Any

import keras

from splitnet.core.errors import DeclarationError, warn
from splitnet.simulator.microbatch import Pipeline
from splitnet.tf.internals import keras_api
from splitnet.tf.reading.flatten import is_sparse
from splitnet.tf.reading.source import blueprint_of
from splitnet.tf.reading.variables import states_of

_OF_BATCH = (keras.layers.BatchNormalization, keras.layers.SpectralNormalization)
_MEANS = ("sum_over_batch_size", "mean", "auto")


def check_pipeline(model: Any, pipeline: Pipeline) -> None:
    """Refuse a model that cannot be cut, and warn of what micro-batches change."""
    if pipeline.microbatches == 1:
        return
    head = f"microbatches={pipeline.microbatches}:"
    if type(model).train_step is not keras.Model.train_step:
        raise DeclarationError(
            f"{head} model {model.name!r} ({type(model).__qualname__}) has a "
            "train_step of its own, which cannot be cut into micro-batches. Emit it "
            "with microbatches=1, or cut the batch in your train_step."
        )
    layers = keras_api.sublayers(model)
    for layer in layers:
        if getattr(layer, "stateful", False):
            raise DeclarationError(
                f"{head} layer {layer.name!r} keeps a state for each sample of a whole "
                "batch (stateful=True). Emit with microbatches=1."
            )
    norms = [x.name for x in layers if isinstance(x, keras.layers.BatchNormalization)]
    if norms:
        warn(
            f"{head} each micro-batch is normalised by itself and moves the averages "
            f"of {', '.join(norms[:6])}, so training is not that of the whole batch."
        )


def warn_of_masks(model: Any, pipeline: Pipeline, made: Any) -> None:
    """Warn of outputs that hand a mask to their loss, as the step is traced."""
    masked = [
        name
        for name, tensor in zip(model.output_names, keras.tree.flatten(made))
        if keras_api.mask_of(tensor) is not None
    ]
    if masked:
        warn(
            f"microbatches={pipeline.microbatches}: the mask of "
            f"{', '.join(masked[:6])} reaches the loss, which is a mean over what "
            "each micro-batch leaves, so "
            "training is that of the whole batch only where all leave alike."
        )


def check_losses(model: Any, pipeline: Pipeline) -> None:
    """Refuse a loss that is not a mean over samples."""
    for loss in _other_losses(model):
        raise DeclarationError(
            f"microbatches={pipeline.microbatches}: loss {loss.name!r} has "
            f"reduction={loss.reduction!r}. Micro-batches need a mean over samples, "
            f"{_MEANS[0]!r}; use it, or emit with microbatches=1."
        )


def _other_losses(model: Any) -> list[Any]:
    """The losses of a compiled model that are no means over samples."""
    losses = keras.tree.flatten(getattr(model, "loss", None))
    return [one for one in losses if getattr(one, "reduction", _MEANS[0]) not in _MEANS]


def obstacles_of(source: Any) -> dict[str, str]:
    """Why a source cannot be cut into "microbatches", or copied into "towers".

    Only what makes training other than that of the whole batch, noise left out.
    """
    found: dict[str, str] = {}

    def note(why: str, *names: str) -> None:
        for name in names or ("microbatches", "towers"):
            found.setdefault(name, why)

    blueprint = blueprint_of(source)
    model = blueprint.model
    for tensor in (*model.inputs, *model.outputs):
        if tuple(tensor.shape[:1]) != (None,):
            note(f"the first axis of {tensor.name!r} is no batch of any size")
    for site in blueprint.sites:
        if any(map(is_sparse, site.node.input_tensors)):
            note(f"{site.call!r} reads a sparse tensor")
        for layer in keras_api.sublayers(site.node.operation):
            if isinstance(layer, _OF_BATCH):
                note(f"{layer.name!r} would see each by itself", "microbatches")
                if layer is not site.node.operation:
                    note(f"{layer.name!r} is inside of another layer", "towers")
            elif not keras_api.from_keras(layer) and any(
                "seed" not in variable.name for variable in states_of(layer)
            ):
                note(f"{layer.name!r} has a state that its calls may change")
    for tensor in model.outputs:
        if keras_api.mask_of(tensor) is not None:
            note(f"{tensor.name!r} hands a mask to its loss", "microbatches")
    if isinstance(source, keras.Model):
        if type(source).train_step is not keras.Model.train_step:
            note("the model has a train_step of its own", "microbatches")
        for loss in _other_losses(source):
            note(f"loss {loss.name!r} is no mean over samples", "microbatches")
    return found
