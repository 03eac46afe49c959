"""Jobs on two machines: network namespaces of this one with names of their own, and a link between
them that can be slow or cut.

    two_hosts_test.py JOB MPIRUN... -- [unittest arguments]

JOB is the program of job/main.cpp. Ends with 77, skipped, where the machine has no namespaces.
"""

import itertools
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

import jobs_test

MPIRUN = []

SECONDS_TO_TELL = 60.0
NET = "10.77.0"
NETWORKS = "ucx", "ofi"   # between machines, besides MPI
ONE_BESIDE = (2, "ucx", "true"), (2, "ofi", "true")   # a rank to kill while threads look on


def succeeds(*line):
    return subprocess.run(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0


def missing():
    """What this machine lacks, or nothing."""
    for tool in "ip", "unshare":
        if shutil.which(tool) is None:
            return f"there is no {tool}"
    name = f"smp{os.getpid()}x"
    if not succeeds("ip", "netns", "add", name):
        return "it allows no network namespaces"
    works = succeeds("ip", "netns", "exec", name, "unshare", "--uts", "hostname", "x")
    subprocess.run(["ip", "netns", "del", name], check=False)
    return "" if works else "a namespace cannot have a host name of its own"


class TwoHosts:
    """Hosts a and b, joined by one link. Commands run in either."""

    def __init__(self):
        self.names = {side: f"smp{os.getpid()}{side}" for side in "ab"}
        self.folder = tempfile.TemporaryDirectory(prefix="two_hosts_")
        for side in "ab":
            self.ip("netns", "add", self.names[side])
        self.ip("link", "add", "smplink", "netns", self.names["a"], "type", "veth", "peer", "name", "smplink",
                "netns", self.names["b"])
        for number, side in enumerate("ab", 1):
            self.within(side, "ip", "addr", "add", f"{NET}.{number}/24", "dev", "smplink")
            for device in "lo", "smplink":
                self.within(side, "ip", "link", "set", device, "up")
        for side in "ab":
            self.wait_for_link(side)
        self.agent = os.path.join(self.folder.name, "agent")
        with open(self.agent, "w", encoding="utf-8") as file:  # stands for ssh: HOST COMMAND...
            file.write(f"""#!/bin/sh
case $1 in {NET}.1) name={self.names["a"]};; *) name={self.names["b"]};; esac
shift
exec ip netns exec $name unshare --uts sh -c "hostname $name; exec sh -c '$*'"
""")
        os.chmod(self.agent, os.stat(self.agent).st_mode | stat.S_IXUSR)

    @staticmethod
    def ip(*arguments):
        subprocess.run(["ip", *arguments], check=True)

    def wait_for_link(self, side):
        """The kernel says a moment later that a link is up, and UCX uses none before."""
        end = time.monotonic() + SECONDS_TO_TELL
        while time.monotonic() < end:
            said = subprocess.run(["ip", "-n", self.names[side], "-br", "link", "show", "smplink"],
                                  stdout=subprocess.PIPE, text=True, check=True).stdout
            if said.split()[1] == "UP":
                return
            time.sleep(0.05)
        raise TimeoutError(f"the link is not up on host {side}: {said}")

    def within(self, side, *line):
        subprocess.run(["ip", "netns", "exec", self.names[side], *line], check=True)

    def mpirun(self, ranks):
        """mpirun on host a, which starts `ranks` on each host."""
        line = [MPIRUN[0], "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "pml", "ob1",
                "--mca", "btl", "vader,self,tcp", "--mca", "mpi_yield_when_idle", "1",
                "--mca", "plm_rsh_agent", self.agent, "--mca", "plm_rsh_no_tree_spawn", "1",
                "--mca", "oob_tcp_if_include", f"{NET}.0/24", "--mca", "btl_tcp_if_include", f"{NET}.0/24",
                "-x", "UCX_NET_DEVICES=smplink", "-x", "UCX_TLS=tcp", "-x", "FI_TCP_IFACE=smplink",
                "-x", "OMP_NUM_THREADS=1", "-x", "SMP_PLAN_CACHE=off",
                "--host", f"{NET}.1:{ranks},{NET}.2:{ranks}"]
        inner = f"hostname {self.names['a']}; exec \"$@\""
        return ["ip", "netns", "exec", self.names["a"], "unshare", "--uts", "sh", "-c", inner, "sh", *line]

    def close(self):
        for name in self.names.values():
            subprocess.run(["ip", "netns", "del", name], check=False)
        self.folder.cleanup()


class TwoHostsTest(unittest.TestCase):
    def setUp(self):
        self.hosts = TwoHosts()
        self.addCleanup(self.hosts.close)

    def start(self, *arguments):
        job = jobs_test.RunningJob(4, *arguments, mpirun=self.hosts.mpirun(2))
        self.addCleanup(job.close)
        return job

    def end_of(self, job):
        """Exit status, all that was said, and how long it took."""
        status, seconds = job.wait()
        job.reader.join()
        return status, "".join(job.output), seconds

    def loss(self, *arguments):
        status, text, _ = self.end_of(self.start("loss", 3, *arguments))
        self.assertEqual(status, 0, text)
        return re.search(r"^loss (\S+)", text, re.MULTILINE)[1]

    def test_the_same_bits_over_every_path(self):
        over_mpi = self.loss("--smp.transport", "mpi")
        for transport in *NETWORKS, "auto":
            self.assertEqual(self.loss("--smp.transport", transport), over_mpi, transport)
        for transport in NETWORKS:
            beside = self.loss("--smp.transport", transport, "--smp.progress_thread", "true")
            self.assertEqual(beside, over_mpi, f"{transport} with a progress thread")

    def test_a_slow_link(self):
        if not shutil.which("tc") or not succeeds(
                "ip", "netns", "exec", self.hosts.names["a"], "tc", "qdisc", "add", "dev", "smplink", "root", "tbf",
                "rate", "400mbit", "burst", "256kb", "latency", "200ms"):
            self.skipTest("there is no tc, or the kernel shapes no traffic")
        fast = self.loss("--smp.transport", "mpi")
        for transport in NETWORKS:
            self.assertEqual(self.loss("--smp.transport", transport), fast, transport)

    def test_a_killed_rank(self):
        for rank, transport, beside in (*itertools.product((1, 2), NETWORKS, ("false",)), *ONE_BESIDE):
            with self.subTest(rank=rank, transport=transport, progress_thread=beside):
                job = self.start("large", 1_000_000, "--smp.transport", transport, "--smp.progress_thread", beside)
                self.assertTrue(job.wait_for_step(3), "".join(job.output))
                os.kill(job.pids[rank], signal.SIGKILL)
                status, text, seconds = self.end_of(job)
                print(f"{transport}: rank {rank} killed: the job ended after {seconds:.2f} s", flush=True)
                self.assertNotEqual(status, 0)
                said = re.findall(r"^smp: .*", text, re.MULTILINE)
                self.assertTrue(any(f"rank {rank}" in line for line in said), text)

    def test_a_link_cut_under_ucx(self):
        self.cut_link("ucx")

    def test_a_link_cut_under_ofi(self):
        self.cut_link("ofi")

    def cut_link(self, transport):
        job = self.start("large", 1_000_000, "--smp.transport", transport, "--smp.stall_seconds", 5,
                         "--smp.abort_seconds", 20)
        self.assertTrue(job.wait_for_step(3), "".join(job.output))
        self.hosts.within("a", "ip", "link", "set", "smplink", "down")
        # The launcher cannot reach the other host either, and may wait for it much longer.
        with job.changed:
            told = job.changed.wait_for(lambda: [line for line in job.output if re.match(r"smp: |.smp E ", line)],
                                        SECONDS_TO_TELL)
        self.assertTrue(told, "".join(job.output))
        print(f"{transport}: link cut: {told[0]}", end="", flush=True)
        self.assertRegex(told[0], r"rank [0-3]\b")


if __name__ == "__main__":
    split = sys.argv.index("--")
    jobs_test.JOB, MPIRUN = sys.argv[1], sys.argv[2:split]
    if problem := missing():
        print(f"skipped: {problem}")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[split + 1:]], verbosity=2)
