"""Do models from KerasHub stay themselves when their calls are on several devices?

Small models with random weights, in float64. The calls of each are placed at random on
a CPU and three stand-ins, and the copy is trained for two epochs of uneven batches, as
is the model itself: outputs, losses and weights are compared, as shares of the largest
value of their tensor, and the audit of a step must be clean. The same with
recomputation, from the values that the model had. Tasks train on raw text.

    pip install keras-hub
    python benchmarks/kerashub.py [NAME ...]

A row says "own" if layers cannot be rebuilt from their configuration, so that the
model's own ones are used. Ends with 1 if anything differs by more than 1e-6. What
computes in float32 alone is left out: T5, Mixtral, QwenMoe, Qwen3Moe.
"""

import argparse
import random
import sys
import warnings

from common import heading

BATCH, TOKENS, WORDS = 3, 12, 60
MOST = 1e-6  # Gemma computes in float32 in part
ENCODER = {
    "vocabulary_size": WORDS,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 32,
}
SHORT = ENCODER | {"max_sequence_length": TOKENS}
DECODER = {
    "vocabulary_size": WORDS,
    "num_layers": 2,
    "num_query_heads": 4,
    "num_key_value_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 32,
}
IMAGE = {"image_shape": (32, 32, 3)}
PATCHES = {"patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 16} | IMAGE
WIDE = PATCHES | {"intermediate_dim": 32}
STAGES = {
    "input_conv_filters": [64],
    "input_conv_kernel_sizes": [7],
    "stackwise_num_filters": [64, 64],
    "stackwise_num_blocks": [1, 1],
    "stackwise_num_strides": [1, 2],
    "block_type": "basic_block",
}
BACKBONES = {
    "Albert": {"embedding_dim": 8} | SHORT,
    "Bart": SHORT,
    "Bert": SHORT,
    "Bloom": ENCODER,
    "DebertaV3": {"bucket_size": 4} | SHORT,
    "DistilBert": SHORT,
    "ESM2": ENCODER,
    "FNet": {k: v for k, v in SHORT.items() if k != "num_heads"},
    "GPT2": SHORT,
    "GPTNeoX": ENCODER,
    "Gemma": {"head_dim": 8} | DECODER,
    "Gemma3": {"head_dim": 8, "image_size": 16} | DECODER,
    "GptOss": {"num_experts": 4} | DECODER,
    "Llama": DECODER,
    "Llama3": DECODER,
    "Mistral": DECODER,
    "OPT": SHORT,
    "Phi3": DECODER,
    "Qwen": DECODER,
    "Qwen3": {"head_dim": 8} | DECODER,
    "Roberta": SHORT,
    "Whisper": ENCODER
    | {"num_mels": 8, "max_encoder_sequence_length": TOKENS}
    | {"max_decoder_sequence_length": TOKENS},
    "XLMRoberta": SHORT,
    "XLNet": ENCODER,
    "DINOV2": {"position_embedding_shape": (32, 32, 3), "use_mask_token": False} | WIDE,
    "DINOV3": {"use_mask_token": False} | WIDE,
    "DeiT": WIDE,
    "DenseNet": {"stackwise_num_repeats": [1, 1]} | IMAGE,
    "ResNet": STAGES | IMAGE,
    "VGG": {"stackwise_num_repeats": [1], "stackwise_num_filters": [8]} | IMAGE,
    "ViT": {"mlp_dim": 32} | PATCHES,
    "Xception": {"stackwise_conv_filters": [[8, 8]], "stackwise_pooling": [True]}
    | IMAGE,
}
TASKS = ("text_classifier", "causal_lm", "low_rank")


def backbone(name):
    """A backbone of this name, and inputs for seven samples."""
    import keras_hub
    import numpy as np

    made = getattr(keras_hub.models, f"{name}Backbone")(**BACKBONES[name])
    numbers, entries = np.random.default_rng(0), made.input
    if not isinstance(entries, dict):
        return made, numbers.random((7, *entries.shape[1:]))
    given = {}
    for key, entry in entries.items():
        size = (7, *(n or TOKENS for n in entry.shape[1:]))
        if "mask" in key:
            given[key] = np.ones(size, "int32")
            given[key][:, TOKENS - 3 :] = 0
        elif "segment" in key:
            given[key] = numbers.integers(0, 2, size, "int32")
        elif "int" in entry.dtype:
            given[key] = numbers.integers(1, WORDS, size, "int32")
        else:
            given[key] = numbers.random(size)
    return made, given


def task(name):
    """A task of this name over characters, raw text, and targets if it needs any."""
    import string

    import keras_hub.models as hub

    text = ["a plane at an air port", "an air", "port", "a b c", "plane", "at", "i"]
    letters = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", *string.ascii_lowercase]
    if name == "text_classifier":
        letters += [f"##{letter}" for letter in string.ascii_lowercase]
        words = hub.BertTokenizer(vocabulary=letters)
        size = {"vocabulary_size": len(letters)}
        kept = hub.BertTextClassifierPreprocessor(words, sequence_length=TOKENS)
        body = hub.BertBackbone(**SHORT | size)
        made = hub.BertTextClassifier(body, num_classes=3, preprocessor=kept)
        return made, text, [0, 1, 2, 1, 0, 2, 1]
    known = ["!", "Ġ", *string.ascii_lowercase, "<|endoftext|>", "ai", "pl"]
    numbers = {one: i for i, one in enumerate(known)}
    words = hub.GPT2Tokenizer(numbers, merges=["a i", "p l"])
    kept = hub.GPT2CausalLMPreprocessor(words, sequence_length=TOKENS)
    body = hub.GPT2Backbone(**SHORT | {"vocabulary_size": len(known)})
    if name == "low_rank":
        body.enable_lora(rank=2)
    return hub.GPT2CausalLM(body, preprocessor=kept), text, None


def apart(one, other):
    """The largest difference, as a share of the largest value of its tensor."""
    import keras
    import numpy as np

    pairs = zip(keras.tree.flatten(one), keras.tree.flatten(other), strict=True)
    arrays = ((np.asarray(a, float), np.asarray(b, float)) for a, b in pairs)
    return max(
        float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-3))
        for a, b in arrays
        if a.size
    )


def trained(model, x, y):
    """Outputs, then losses and weights after two epochs."""
    import keras

    keras.utils.set_random_seed(3)
    if not hasattr(model, "preprocessor"):
        model.compile(keras.optimizers.SGD(0.01), "mse")
    outputs = model.predict(x, batch_size=BATCH, verbose=0)
    more = {} if y is None else {"y": y}
    how = {"batch_size": BATCH, "shuffle": False, "verbose": 0, "epochs": 2}
    losses = model.fit(x=x, **more, **how).history["loss"]
    return outputs, losses, model.get_weights()


def row(name, cluster):
    """Place a model twice, train, compare; the worst difference and a row of text."""
    import keras
    import numpy as np

    import splitnet as sn

    keras.utils.set_random_seed(1)
    if name in TASKS:
        model, x, y = task(name)
        y = None if y is None else np.array(y)
    else:
        model, x = backbone(name)
        noise = np.random.default_rng(1)
        y = keras.tree.map_structure(lambda t: noise.random(t.shape), model(x))
    before, draw = [v.numpy() for v in model.variables], random.Random(0)
    graph = sn.read(model, BATCH)
    parts = [part.name for part in graph.parts if part.kind != "input"]
    where = {part: draw.choice(cluster.names) for part in parts}
    plan, found = sn.score(model, cluster, where, batch=BATCH), []
    for how in ({}, {"recompute": True}):
        placed = sn.emit(model, plan, **how)
        mine = trained(placed, x, y)
        if not how:
            batch = [x] if y is None else [x, y]
            if name in TASKS:
                batch = [one[:BATCH] for one in batch]
            else:
                batch = keras.tree.map_structure(lambda a: a[:BATCH], batch)
            sn.audit(placed, plan, tuple(batch)).check()
        for variable, value in zip(model.variables, before, strict=True):
            variable.assign(value)
        found += map(apart, mine, trained(model, x, y))
        for variable, value in zip(model.variables, before, strict=True):
            variable.assign(value)
    own = "own" if sn.plan_of(placed).reused else ""
    cells = "".join(f"{value:10.1e}" for value in found)
    return max(found), f"{name:16}{len(graph.calls):6}{cells}  {own}"


def main():
    """Print a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=[*BACKBONES, *TASKS])
    options = parser.parse_args()
    heading(__doc__.splitlines()[0])
    import keras

    import splitnet as sn

    cluster = sn.local_cluster(stand_in_gpus=3)
    keras.config.set_floatx("float64")
    warnings.simplefilter("ignore")
    kinds = "".join(f"{kind:>10}" for kind in ("outputs", "losses", "weights") * 2)
    print(f"{'model':16}{'calls':>6}{kinds}  (the last three with recomputation)")
    wrong = 0
    for name in options.names:
        worst, text = row(name, cluster)
        wrong += worst > MOST
        print(text, flush=True)
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
