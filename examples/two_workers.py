"""One model over two processes: each has TensorFlow's own server and a branch.

The workers are on this machine, in a network that only it can reach. On other machines
only the cluster file differs. Data: tumours (scikit-learn's breast cancer set).
"""

import splitnet as sn


def declare(worker: str) -> sn.Net:
    """Means on the first worker, errors and extremes on the second, merge here."""
    from keras import layers

    def encoder(width: int) -> list[layers.Layer]:
        return [layers.Dense(width, activation="relu"), layers.Dense(16)]

    net = sn.Net("two_workers")
    means = net.input("means", (10,))
    others = net.input("others", (20,))
    sides = [
        net.branch("left", means, encoder(64), on=worker.format(0)),
        net.branch("right", others, encoder(64), on=worker.format(1)),
    ]
    joined = net.merge("joined", sides, layers.Concatenate(), on="cpu:0")
    head = layers.Dense(1, activation="sigmoid")
    net.output(net.branch("malignant", joined, head, on="cpu:0"))
    return net


with sn.local_workers(2) as workers:  # before NumPy and TensorFlow start threads
    import keras
    from sklearn.datasets import load_breast_cancer

    connection = sn.connect(workers.cluster)
    net = declare("worker:{}/cpu:0")
    plan = sn.plan(net, workers.cluster, batch=64)
    print(sn.table(plan))
    sn.draw(plan, "two_workers.svg")

    values, malignant = load_breast_cancer(return_X_y=True)
    values = ((values - values.mean(0)) / values.std(0)).astype("float32")
    inputs = [values[:, :10], values[:, 10:]]

    keras.utils.set_random_seed(0)
    model = sn.emit(net, plan)
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    with connection:  # a worker that dies is named in a WorkerError
        model.fit(inputs, malignant, batch_size=64, epochs=5, verbose=2)
        batch = ([part[:64] for part in inputs], malignant[:64])
        sn.audit(model, plan, batch).check()
