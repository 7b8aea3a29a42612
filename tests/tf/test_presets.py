"""Presets of GPUs: the predicted step of known models against published figures.

Sources: NVIDIA DeepLearningExamples, `TensorFlow/Classification/ConvNets/resnet50v1.5`
(training and inference) and `TensorFlow2/LanguageModeling/BERT` (inference of BERT-base
for SQuAD), PyTorch pull request 45591 (an LSTM of cuDNN), and lambdal/deeplearning-
benchmark, `pytorch/pytorch-train-*.csv` (training; columns `resnet50` and
`bert_base_squad`). Figures are for one GPU. Matrix products: zzc0721/torch-performance-
test-data, issues 120, 79 and 45, in TFLOP/s (the best size, TF32 and 16 bits). An L4
with BERT-base: model card of sinequa/passage-ranker-v1-L-multilingual, Hugging Face.
"""

import functools

import keras
import pytest
from keras import layers

import splitnet as sn
from splitnet.simulator.units import scaled_graph
from tests.tf.check import in_policy

resnet50 = functools.partial(keras.applications.ResNet50, weights=None)


def bert():
    words = keras.Input((384,), dtype="int32")
    x = layers.LayerNormalization()(layers.Embedding(30_522, 768)(words))
    for _ in range(12):
        y = layers.MultiHeadAttention(12, 64)(x, x)
        x = layers.LayerNormalization()(layers.Add()([x, y]))
        y = layers.Dense(768)(layers.Dense(3072, "gelu")(x))
        x = layers.LayerNormalization()(layers.Add()([x, y]))
    return keras.Model(words, layers.Dense(2)(x))


def lstm():
    x = keras.Input((100, 512))
    return keras.Model(x, layers.LSTM(512, return_sequences=True)(x))


FLOAT, HALF = "float32", "mixed_float16"
TRAINED = {  # samples per second and batch: ResNet-50 and BERT-base, in 32 and 16 bits
    "V100": ((369, 128), (42, 24), (833, 256), (189, 48)),
    "RTX 4090": ((721, 224), (137, 48), (1301, 448), (297, 96)),
    "A10": ((349, 224), (70, 48), (638, 448), (135, 96)),
    "A100": ((1066, 640), (239, 172), (1582, 1280), (443, 320)),
    "H100": ((1893, 640), (437, 172), (2787, 1280), (870, 320)),
}
HOW = (resnet50, FLOAT), (bert, FLOAT), (resnet50, HALF), (bert, HALF)


@functools.cache
def read(build, policy, training):
    with in_policy(policy):
        return sn.read(build, 32, training=training)


def predicted(build, policy, batch, preset, training):
    graph = scaled_graph(read(build, policy, training), batch)
    box = sn.Cluster.of("gpu", "cpu", preset=preset, memory="1 TB")
    return sn.score(graph, box, {"*": "gpu:0"}, optimizer="momentum", training=training)


@pytest.mark.parametrize(
    ("build", "preset", "policy", "batch", "training", "published"),
    [
        (resnet50, "A100", FLOAT, 256, True, 256 / 909),
        (resnet50, "V100", FLOAT, 128, False, 96.61e-3),
        (bert, "V100", FLOAT, 8, False, 54.74e-3),
        (bert, "A100", FLOAT, 8, False, 12.39e-3),
        (bert, "A100", HALF, 8, False, 9.45e-3),
        (bert, "T4", FLOAT, 8, False, 155.85e-3),
        (bert, "T4", HALF, 8, False, 41.53e-3),
        (lstm, "V100", FLOAT, 64, True, 29.3e-3),
        *(
            (build, gpu, policy, batch, True, batch / rate)
            for gpu, rows in TRAINED.items()
            for (build, policy), (rate, batch) in zip(HOW, rows)
        ),
    ],
)
def test_a_predicted_step_is_within_a_factor_of_two(
    build, preset, policy, batch, training, published
):
    """Of the published one; and the verdict says that it is estimated."""
    found = predicted(build, policy, batch, preset, training)
    assert "estimated" in str(found.verdict)
    assert 0.5 < found.seconds / published < 2.0


def test_gpus_without_published_steps_are_within_a_factor_of_two():
    """In large products; an L4 also beside other GPUs, for texts of any length."""
    for policy, *times in ((FLOAT, 124, 82, 364), (HALF, 38, 31, 65)):
        found = [predicted(bert, policy, 32, gpu, False) for gpu in ("L4", "A10", "T4")]
        ratios = [one.seconds * 1e3 / time for one, time in zip(found, times)]
        assert max(ratios) < 2 * min(ratios)
    for preset, single, half in (("L4", 32, 69), ("H100", 402, 760), ("H200", 0, 759)):
        gpu = sn.Device.of("gpu:0", preset=preset)
        for published, gain in ((single, 1), (half, gpu.half_speed)):
            peak = gpu.flops_per_second * gain
            assert not published or 0.5 < published * 1e12 / peak < 2.0


def test_layers_cost_what_they_compute_when_a_model_predicts():
    """Without training Dropout passes its input on, and a norm takes no means."""

    def build():
        x = keras.Input((64, 64, 8))
        y = layers.Dropout(0.5, name="drop")(layers.BatchNormalization(name="norm")(x))
        return keras.Model(x, layers.Dense(4)(y))

    step, ahead = (sn.read(build, 32, training=one).call for one in (True, False))
    assert step["drop"].forward_flops > ahead["drop"].forward_flops == 0
    assert step["norm"].moved_bytes > 1.5 * ahead["norm"].moved_bytes
