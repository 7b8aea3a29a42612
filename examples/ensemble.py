"""Three networks, one per GPU, trained as one model and averaged on the CPU.

They read the same handwritten digits (scikit-learn's). Each has a loss of its own; the
average is as good as the best of them.
"""

import keras
from keras import layers
from sklearn.datasets import load_digits

import splitnet as sn

cluster = sn.local_cluster(stand_in_gpus=3)
images, digits = load_digits(return_X_y=True)
images = (images / 16).astype("float32").reshape(-1, 8, 8, 1)
kept, apart = slice(0, 1400), slice(1400, None)

networks = {
    "shallow": [layers.Flatten(), layers.Dense(64, activation="relu")],
    "small_kernels": [
        layers.Conv2D(32, 2, activation="relu"),
        layers.Conv2D(32, 2, activation="relu"),
        layers.Flatten(),
    ],
    "large_kernels": [
        layers.Conv2D(32, 5, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
    ],
}

net = sn.Net("ensemble")
image = net.input("image", (8, 8, 1))
votes = []
for gpu, (name, body) in enumerate(networks.items()):
    body = [*body, layers.Dense(10, activation="softmax")]
    votes.append(net.branch(name, image, body, on=f"gpu:{gpu}"))
    net.output(votes[-1], f"{name}_digit")
net.output(net.merge("average", votes, layers.Average()), "digit")

plan = sn.plan(net, cluster, batch=100)
print(sn.table(plan))
sn.draw(plan, "ensemble.svg")

keras.utils.set_random_seed(0)
model = sn.emit(net, plan)
names = [*(f"{name}_digit" for name in networks), "digit"]
model.compile(
    "adam",
    [*["sparse_categorical_crossentropy"] * 3, None],  # the average is not trained
)
model.fit(images[kept], [digits[kept]] * 4, batch_size=100, epochs=5, verbose=0)

predictions = model.predict(images[apart], verbose=0)
for name, prediction in zip(names, predictions, strict=True):
    right = (prediction.argmax(1) == digits[apart]).mean()
    print(f"{name:<20} {right:.1%} of held-out digits")

sn.audit(model, plan, (images[:100], [digits[:100]] * 4)).check()
