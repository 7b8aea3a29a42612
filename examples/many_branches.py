"""Branches from a loop, placed by the planner: six measures of a tumour, six branches.

scikit-learn's breast cancer data give each measure three times (mean, error, worst).
Every one has a branch of its own on whichever GPU suits; two of them are kept together
and two apart.
"""

import keras
from keras import layers
from sklearn.datasets import load_breast_cancer

import splitnet as sn

cluster = sn.local_cluster(stand_in_gpus=3)

data = load_breast_cancer()
names = [
    name.removeprefix("mean ").replace(" ", "_") for name in data.feature_names[:6]
]

net = sn.Net("many_branches")
branches = {}
for name in names:
    measure = net.input(name, (3,))
    dense = layers.Dense(64, activation="relu")
    where = {}
    if name == "perimeter":
        where = {"near": branches["radius"]}  # the same device
    if name == "compactness":
        where = {"apart": branches["smoothness"]}  # another device
    branches[name] = net.branch(f"{name}_branch", measure, dense, on="gpu", **where)
joined = net.merge("joined", list(branches.values()), layers.Concatenate())
net.output(net.branch("malignant", joined, layers.Dense(1, activation="sigmoid")))

plan = sn.plan(net, cluster, batch=64, time_limit=1)
print(sn.table(plan))
print(plan.explain("compactness_branch"))
sn.draw(plan, "many_branches.svg")

values = (data.data - data.data.mean(0)) / data.data.std(0)
inputs = {name: values[:, i::10].astype("float32") for i, name in enumerate(names)}

keras.utils.set_random_seed(0)
model = sn.emit(net, plan)
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
model.fit(inputs, data.target, batch_size=64, epochs=5, verbose=2)

batch = ({name: rows[:64] for name, rows in inputs.items()}, data.target[:64])
sn.audit(model, plan, batch).check()
