"""Compare the FLOPs that splitnet counts with those that others published.

Question: are the multiply-adds of `keras.applications` models within 2 % of published
ones? Counted are matrix products and convolutions, two FLOPs per multiply-add: the
convention of the papers, which leave out biases, normalisation, activations and
pooling; the last column shows how much these add. Models are built without values, so
no weights are downloaded and no memory is used for them.

    python benchmarks/flops.py [MODEL ...]
"""

import argparse
import time

HE = "He et al. 2015, arXiv 1512.03385, table 1 and section 3.3"
HOWARD = "Howard et al. 2017, arXiv 1704.04861, tables 6 and 8"
SANDLER = "Sandler et al. 2018, arXiv 1801.04381, table 4"
HOWARD_3 = "Howard et al. 2019, arXiv 1905.02244, table 3"
ZOPH = "Zoph et al. 2017, arXiv 1707.07012, tables 2 and 3"
TAN = "Tan and Le 2019, arXiv 1905.11946, table 2"
TORCHVISION = "torchvision, table of all available classification weights"

PUBLISHED = (
    # model, options, millions of multiply-adds, where
    ("VGG16", {}, 15_470, TORCHVISION),
    ("VGG19", {}, 19_600, HE),
    ("ResNet50", {}, 3_800, HE),
    ("ResNet101", {}, 7_600, HE),
    ("ResNet152", {}, 11_300, HE),
    ("MobileNet", {}, 569, HOWARD),
    ("MobileNet", {"alpha": 0.75}, 325, HOWARD),
    ("MobileNet", {"alpha": 0.5}, 149, HOWARD),
    ("MobileNetV2", {}, 300, SANDLER),
    ("MobileNetV2", {"alpha": 1.4}, 585, SANDLER),
    ("MobileNetV3Large", {"input_shape": (224, 224, 3)}, 219, HOWARD_3),
    ("MobileNetV3Small", {"input_shape": (224, 224, 3)}, 56, HOWARD_3),
    ("InceptionV3", {}, 5_720, ZOPH),
    ("Xception", {}, 8_380, ZOPH),
    ("InceptionResNetV2", {}, 13_200, ZOPH),
    ("NASNetMobile", {}, 564, ZOPH),
    ("NASNetLarge", {}, 23_800, ZOPH),
    ("DenseNet121", {}, 2_830, TORCHVISION),
    ("DenseNet169", {}, 3_360, TORCHVISION),
    ("DenseNet201", {}, 4_290, TORCHVISION),
    ("EfficientNetB0", {}, 390, TAN),
    ("EfficientNetB1", {}, 700, TAN),
    ("EfficientNetB2", {}, 1_000, TAN),
    ("EfficientNetB3", {}, 1_800, TAN),
    ("EfficientNetB4", {}, 4_390, TORCHVISION),
    ("EfficientNetB7", {}, 37_750, TORCHVISION),
    ("EfficientNetV2S", {}, 8_370, TORCHVISION),
    ("ConvNeXtTiny", {}, 4_460, TORCHVISION),
    ("ConvNeXtSmall", {}, 8_680, TORCHVISION),
    ("ConvNeXtBase", {}, 15_360, TORCHVISION),
)
"""Multiply-adds of one image at the model's default size."""


def count(name, options):
    """Return the cost of one image, and the seconds it took to work out."""
    import keras

    from splitnet.tf.internals.keras_api import producer, without_values
    from splitnet.tf.reading.call_cost import cost_of

    with without_values():
        model = getattr(keras.applications, name)(weights=None, **options)
        output = model(keras.Input(model.input_shape[1:]))
    start = time.perf_counter()
    cost = cost_of(producer(output), 1)
    return cost, time.perf_counter() - start


def main():
    """Print a row per model, published beside counted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help="only these")
    chosen = parser.parse_args().models
    print(
        f"{'model':30}{'published M':>12}{'counted M':>11}{'off %':>7}{'seconds':>9}"
        f"{'rest %':>8}  source"
    )
    for name, options, published, source in PUBLISHED:
        if chosen and name not in chosen:
            continue
        cost, seconds = count(name, options)
        counted = cost.matrix_flops / 2e6
        rest = (cost.forward_flops / cost.matrix_flops - 1) * 100
        title = name + "".join(f" {k}={v}" for k, v in options.items() if k == "alpha")
        print(
            f"{title:30}{published:12,}{counted:11,.0f}"
            f"{(counted / published - 1) * 100:+7.1f}{seconds:9.2f}{rest:8.1f}"
            f"  {source}"
        )


if __name__ == "__main__":
    main()
