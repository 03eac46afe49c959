#!/usr/bin/env python3
"""Our safetensors files and those of Python's package: safetensors_test.py REWRITE SCRATCH

What the package writes, our program reads and writes again, and the package reads that. Without the
package, and without a network to get it from, the test is skipped (exit code 77).
"""
import os
import subprocess
import sys
import unittest

SKIPPED = 77


def python_with_packages(scratch):
    """A Python that has safetensors and numpy: this one, or one of a virtual environment."""
    probe = ["-c", "import numpy, safetensors.numpy"]
    own = os.path.join(scratch, "venv", "bin", "python")
    for python in (sys.executable, own):
        if os.path.exists(python) and subprocess.run([python, *probe], stderr=subprocess.DEVNULL).returncode == 0:
            return python
    steps = ([sys.executable, "-m", "venv", os.path.dirname(os.path.dirname(own))],
             [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "safetensors", "numpy"],
             [own, *probe])
    for step in steps:
        done = subprocess.run(step, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            print("skipped: Python's safetensors is not here and cannot be installed:", done.stdout[-400:])
            sys.exit(SKIPPED)
    return own


class Safetensors(unittest.TestCase):
    def rewrite(self, tensors, metadata=None):
        from safetensors import safe_open
        from safetensors.numpy import load_file, save_file
        theirs, ours = os.path.join(SCRATCH, "theirs"), os.path.join(SCRATCH, "ours")
        save_file(tensors, theirs, metadata)
        subprocess.run([REWRITE, theirs, ours], check=True)
        with safe_open(ours, "numpy") as file:
            return load_file(ours), file.metadata(), ours

    def test_every_dtype_and_shape_comes_back(self):
        import numpy
        tensors = {}
        for dtype in ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
                      "float16", "float32", "float64", "complex64"):
            for shape in ((), (1,), (0, 3), (2, 3, 5)):
                count = int(numpy.prod(shape))
                values = (numpy.arange(count) * 37 + 1).astype(dtype).reshape(shape)
                tensors[f"layer.{dtype}.{len(shape)}{count}"] = values
        read, _, _ = self.rewrite(tensors)
        self.assertEqual(set(read), set(tensors))
        for name, tensor in tensors.items():
            self.assertEqual(read[name].dtype, tensor.dtype, name)
            self.assertEqual(read[name].shape, tensor.shape, name)
            self.assertEqual(read[name].tobytes(), tensor.tobytes(), name)

    def test_names_and_metadata_come_back(self):
        import numpy
        name = 'a "quoted" \\ name, \u00e4\u20ac\U0001f600\n'
        read, metadata, _ = self.rewrite({name: numpy.ones(2)}, {"format": "np", "note": name})
        self.assertEqual(list(read), [name])
        self.assertEqual(metadata["note"], name)
        self.assertEqual(metadata["format"], "np")

    def test_a_file_without_tensors(self):
        self.assertEqual(self.rewrite({})[0], {})

    def test_a_sharded_model(self):
        import json
        import numpy
        from safetensors.numpy import load_file, save_file
        folder = os.path.join(SCRATCH, "sharded")
        os.makedirs(folder, exist_ok=True)
        tensors = {f"layer.{i}": numpy.full((i + 1, 3), i, "float32") for i in range(5)}
        files = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(tensors)}
        for file in set(files.values()):
            save_file({name: tensors[name] for name in tensors if files[name] == file}, os.path.join(folder, file))
        index = os.path.join(folder, "model.safetensors.index.json")
        with open(index, "w") as out:
            json.dump({"metadata": {"total_size": 180}, "weight_map": files}, out)
        ours = os.path.join(SCRATCH, "joined")
        for path in (index, folder):
            subprocess.run([REWRITE, path, ours], check=True)
            read = load_file(ours)
            self.assertEqual(set(read), set(tensors))
            for name, tensor in tensors.items():
                self.assertEqual(read[name].tobytes(), tensor.tobytes(), name)

    def test_equal_content_is_equal_bytes(self):
        import numpy
        from safetensors.numpy import save_file
        metadata = {f"key {i}": str(i) for i in range(20)}
        written = set()
        for attempt in range(4):  # the package writes the metadata in another order each time
            theirs, ours = os.path.join(SCRATCH, "theirs"), os.path.join(SCRATCH, "ours")
            save_file({"x": numpy.ones(3), "y": numpy.zeros(2)}, theirs, metadata)
            subprocess.run([REWRITE, theirs, ours], check=True)
            with open(ours, "rb") as file:
                written.add(file.read())
        self.assertEqual(len(written), 1)

    def test_our_damage_is_noticed(self):
        import numpy
        _, _, path = self.rewrite({"x": numpy.ones(100)})
        with open(path, "r+b") as file:
            file.seek(-3, os.SEEK_END)
            file.write(b"\x7f")
        done = subprocess.run([REWRITE, path, path + ".2"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn('damaged values of "x"', done.stderr)


if __name__ == "__main__":
    REWRITE, SCRATCH = sys.argv[1], sys.argv[2]
    os.makedirs(SCRATCH, exist_ok=True)
    python = python_with_packages(SCRATCH)
    if python != sys.executable:
        sys.exit(subprocess.run([python, *sys.argv]).returncode)
    unittest.main(argv=sys.argv[:1])
