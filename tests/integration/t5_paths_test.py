"""A T5 gets the same bits over every path between its ranks.

    t5_paths_test.py JOB MPIRUN... -- [unittest arguments]

JOB is the program of t5/main.cpp.
"""

import subprocess
import sys
import unittest

import jobs_test
import two_hosts_test

STEPS = 4
SECONDS = 120
ALIKE = "--smp.intra_op_threads", 1   # sums of several threads would have other bits

COPIES = "--smp.lend_tensors", "false"


def over(transport):
    return "--smp.transport", transport


def trained(test, ranks, *settings, mpirun=None):
    """What each rank has computed, in all bits."""
    line = jobs_test.command((ranks, STEPS, *ALIKE, *settings), mpirun=mpirun)
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS)
    test.assertEqual(done.returncode, 0, done.stdout)
    test.assertEqual(jobs_test.lines_of_ours(done.stdout), [], "a path that does not work is left for another one")
    results = jobs_test.results_of(done.stdout)
    test.assertEqual(set(results), set(range(ranks)), done.stdout)
    test.assertEqual(len(results[0].split("losses ")[1].split()), STEPS)
    return results


class SameBits(unittest.TestCase):
    def compare(self, ranks, expected, *paths, mpirun=None):
        for settings in paths:
            with self.subTest(ranks=ranks, settings=settings):
                self.assertEqual(trained(self, ranks, *settings, mpirun=mpirun), expected)

    def test_on_one_host(self):
        self.compare(2, trained(self, 2), COPIES, over("mpi"))
        self.compare(4, trained(self, 4), COPIES, over("mpi"), over("ucx"), over("ofi"))

    def test_on_two_hosts(self):
        if problem := two_hosts_test.missing():
            self.skipTest(problem)
        hosts = two_hosts_test.TwoHosts()
        self.addCleanup(hosts.close)
        self.compare(2, trained(self, 2), over("mpi"), over("ucx"), over("ofi"), mpirun=hosts.mpirun(1))
        self.compare(4, trained(self, 4), over("mpi"), over("auto"), over("ucx"), over("ofi"), over("ucx") + COPIES,
                     over("ofi") + COPIES, mpirun=hosts.mpirun(2))


if __name__ == "__main__":
    split = sys.argv.index("--")
    jobs_test.JOB = sys.argv[1]
    jobs_test.MPIRUN = two_hosts_test.MPIRUN = sys.argv[2:split]
    unittest.main(argv=[sys.argv[0], *sys.argv[split + 1:]], verbosity=2)
