"""Jobs on machines that refuse memory which ranks share: they train over MPI, and say why.

    refused_memory_test.py JOB MPIRUN... -- [unittest arguments]

JOB is the program of job/main.cpp.
"""

import os
import re
import subprocess
import sys
import unittest

from jobs_test import results_of

JOB = ""
MPIRUN = []
STEPS = "4"
SECONDS = 120
MIB = 1 << 20

# Becomes the job, with files of so many bytes at most. No shell: their units of `ulimit -f` differ.
LIMITED = """
import os, resource, sys
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), hard))
os.execv(sys.argv[2], sys.argv[2:])
"""


def limited(bytes_of_file, *job):
    return [sys.executable, "-c", LIMITED, str(bytes_of_file), *job]


def run(*blocks, environment=None):
    """Runs a job of blocks (ranks, command) to its end; returns its exit status and all that it said."""
    line = [word.replace("vader", "tcp") for word in MPIRUN]   # files of MPI's own shared memory would be too long
    for number, (ranks, *command) in enumerate(blocks):
        line += ([":"] if number else []) + ["-n", str(ranks), *command]
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS,
                          env={**os.environ, **(environment or {})}, check=False)
    return done.returncode, done.stdout


class RefusedMemory(unittest.TestCase):
    """A rank that may not write long files shares no memory with others."""

    def trained(self, *blocks, environment=None):
        """What the job warned about, and what its ranks have computed."""
        status, text = run(*blocks, environment=environment)
        self.assertEqual(status, 0, text)
        results = results_of(text)
        self.assertEqual(set(results), {0, 1, 2}, text)
        return re.findall(r"^\[smp W.*", text, re.MULTILINE), results

    @classmethod
    def setUpClass(cls):
        cls.job = [JOB, "loss", STEPS]
        warnings, cls.results = cls().trained((3, *cls.job))
        cls().assertEqual(warnings, [])   # without a limit

    def test_of_one_rank_is_told_once_and_the_job_trains_over_mpi(self):
        warnings, results = self.trained((1, *self.job), (1, *limited(MIB, *self.job)), (1, *self.job))
        self.assertEqual(results, self.results)
        self.assertEqual(len(warnings), 1, warnings)
        self.assertRegex(warnings[0], r"rank 1: ranks of this machine cannot share memory, so the whole job uses MPI")
        self.assertRegex(warnings[0], r"File too large \(\S+ MiB are needed, and `ulimit -f` allows 1 MiB\)")
        self.assertRegex(warnings[0], r"`ulimit -f unlimited`.*or transport = mpi if that is wanted")

    def test_of_all_ranks_is_told_once(self):
        warnings, results = self.trained((3, *limited(MIB, *self.job)))
        self.assertEqual(results, self.results)
        self.assertEqual(len(warnings), 1, warnings)
        self.assertIn("ranks 0-2: ranks of this machine cannot share memory", warnings[0])

    def test_of_what_is_lent_leaves_shared_memory(self):
        warnings, results = self.trained((3, *limited(256 * MIB, *self.job)))
        self.assertEqual(results, self.results)
        self.assertEqual(len(warnings), 1, warnings)
        self.assertIn("ranks 0-2: ranks of this machine copy large tensors instead of lending them", warnings[0])
        self.assertRegex(warnings[0], r"allows 256 MiB\).*or lend_tensors = false if that is wanted")

    def test_that_is_not_wanted_says_nothing(self):
        for environment, size in ({"SMP_TRANSPORT": "mpi"}, MIB), ({"SMP_LEND_TENSORS": "false"}, 256 * MIB):
            warnings, results = self.trained((3, *limited(size, *self.job)), environment=environment)
            self.assertEqual(results, self.results)
            self.assertEqual(warnings, [], environment)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    split = arguments.index("--")
    JOB, *MPIRUN = arguments[:split]
    unittest.main(argv=[sys.argv[0], *arguments[split + 1:]], verbosity=2)
