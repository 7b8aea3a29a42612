"""One layer, two branches: the Keras FAQ's shared LSTM, made true.

Two digits are read row by row, eight rows of eight pixels, by one LSTM on two devices.
Its weights exist once, on the device of the first branch; each step sends them to the
other and brings the gradient back, and the table says what that costs.
"""

import keras
from keras import layers

import splitnet as sn
from splitnet.demo import pairs_of_digits

cluster = sn.local_cluster(stand_in_gpus=2)

net = sn.Net("shared_encoder")
first = net.input("first", (8, 8))
second = net.input("second", (8, 8))
encoder = layers.LSTM(32)

a = net.branch("a", first, encoder, on="gpu:0")
b = net.branch("b", second, encoder, on="gpu:1")
joined = net.merge(
    "joined", [a, b], lambda two: keras.ops.square(two[0] - two[1])
)  # a function of tensors serves as a body, too
head = layers.Dense(1, activation="sigmoid")
net.output(net.branch("same", joined, head, on="cpu"))

plan = sn.plan(net, cluster, batch=256)
print(sn.table(plan))
print(plan.verdict)  # is it worth it? not for a layer this small, and it says so
sn.draw(plan, "shared_encoder.svg")

keras.utils.set_random_seed(0)
model = sn.emit(net, plan)
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
(inputs, labels), _ = pairs_of_digits()
rows = [images[:, :, :, 0] for images in inputs]
model.fit(rows, labels, batch_size=256, epochs=3, verbose=2)

lstm = next(layer for layer in model.layers if isinstance(layer, layers.LSTM))
print(f"{lstm.name} has {len(lstm.weights)} weights, once for both branches")

batch = ([part[:256] for part in rows], labels[:256])
sn.audit(model, plan, batch).check()
