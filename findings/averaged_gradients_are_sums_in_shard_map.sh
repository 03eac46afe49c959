#!/usr/bin/env bash
# jax 0.10.2 (4 devices played by the CPU): the loop of data parallelism, lax.pmean(grad(loss)(w, x)), gives N times the gradient in jax.shard_map.
#
# Weights are on all devices (in_specs P()), rows are dealt (P("data")), each device takes the gradient of its own mean loss, pmean averages: so it
# is written for pmap. Guess: in jax.shard_map it is the gradient of the mean over all rows too, or an error. Seen of 4 devices, 8 rows:
# 1. It is 140 for 35: four times as large, without a word. With check_vma=True, as it is unless said otherwise, grad() by a value that is equal on
#    all devices adds up over them by itself, and pmean of equal numbers changes nothing. psum for pmean gives 16 times.
# 2. Without any pmean it is 140 as well: the sum over devices, where pmap gives each its own.
# 3. With check_vma=False, and in jax.pmap, the same lines give 35.
# 4. Right in all of them: the loss is averaged within, grad(lambda w: pmean(loss(w, x))), and the gradients are averaged after it. Right with
#    check_vma=True only: the averaged loss alone, which is 1 with check_vma=False: a device's own.
# Adam hides the factor, clipping does not, and SGD takes a step that is N times as long.
#
# Fails if it changes. Takes a minute, mostly the installation.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --no-compile --disable-pip-version-check "jax==0.10.2" "jaxlib==0.10.2" "numpy==2.4.6" 2>pip.log || { cat pip.log; exit 1; }

cat >check.py <<'PY'
import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, PartitionSpec

print("jax", jax.__version__, "devices", jax.device_count())
mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
rows, weight = jnp.arange(8.0), jnp.float32(1)


def loss(w, x):
    return jnp.mean((w * x) ** 2)


def averaged_loss(w, x):
    return lax.pmean(loss(w, x), "data")


loops = {
    "pmean of gradients": lambda w, x: lax.pmean(jax.grad(loss)(w, x), "data"),
    "psum of gradients": lambda w, x: lax.psum(jax.grad(loss)(w, x), "data"),
    "nothing": jax.grad(loss),
    "pmean of the loss": jax.grad(averaged_loss),
    "pmean of both": lambda w, x: lax.pmean(jax.grad(averaged_loss)(w, x), "data"),
}


def mapped(loop, **options):
    """What the first device has."""
    specs = PartitionSpec(), PartitionSpec("data")
    return float(jax.jit(jax.shard_map(loop, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), **options))(weight, rows))


whole = float(jax.grad(loss)(weight, rows))
print("one device, all rows:", whole)
assert whole == 35, "CHANGED"
expected = {"pmean of gradients": (140, 35, 35), "psum of gradients": (560, 140, 140), "nothing": (140, 1, 1), "pmean of the loss": (35, 1, 1),
            "pmean of both": (35, 35, 35)}
for name, loop in loops.items():
    by_pmap = float(jax.pmap(loop, axis_name="data", in_axes=(None, 0))(weight, rows.reshape(4, 2))[0])
    seen = mapped(loop), mapped(loop, check_vma=False), by_pmap
    print(f"{name}: shard_map {seen[0]}, with check_vma=False {seen[1]}, pmap {seen[2]}")
    assert seen == expected[name], f"CHANGED: {name}"
PY
venv/bin/python check.py 2>err.log || { cat err.log; exit 1; }
