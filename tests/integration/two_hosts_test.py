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
# Open MPI's daemons take 2 to 3 s until they have ended ranks of two machines; a busy machine gets more.
SECONDS_TO_END = 10.0
RANKS_OF_A_HOST = 2
NET = "10.77.0"
NETWORKS = "ucx", "ofi"   # between machines, besides MPI
SAME_BITS = "--smp.intra_op_threads", 1   # sums of several threads would have others
UNWATCHED = "--smp.keep_alive_seconds", 0
SILENCE = 5   # seconds
WATCHED = "--smp.keep_alive_seconds", SILENCE, "--smp.keep_alive_interface", "smplink", "--smp.abort_seconds", 0
ONE_BESIDE = (2, "ucx", "true"), (2, "ofi", "true")   # a rank to kill while threads look on


def lost_over(transport, rank):
    """What who loses `rank` over a network says (a regular expression, as `rank` may be)."""
    library = {"ucx": "UCX", "ofi": "libfabric"}[transport]
    return (rf"(?:the connection to|sending (?:\d+ bytes )?to|receiving \d+ bytes from) rank {rank} over {library} "
            r"(?:is broken|failed) \(.*\): that rank or the network between is gone; restart from a checkpoint")


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
        """What a command said there."""
        return subprocess.run(["ip", "netns", "exec", self.names[side], *line], check=True, stdout=subprocess.PIPE,
                              text=True).stdout

    def sent(self, device):
        """Bytes that a network device has sent, on both hosts together."""
        tables = "".join(self.within(side, "cat", "/proc/net/dev") for side in "ab")
        return sum(int(fields.split()[8]) for fields in re.findall(rf"^ *{device}:(.*)$", tables, re.MULTILINE))

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

    def trained(self, *arguments):
        """What each rank has computed, in all bits, and what went over which path."""
        status, text, _ = self.end_of(self.start("traffic", 3, *SAME_BITS, *arguments))
        self.assertEqual(status, 0, text)
        results = jobs_test.results_of(text)
        self.assertEqual(set(results), set(range(4)), text)
        return results, jobs_test.traffic_of(text)

    def on_one_host(self):
        """The same, without a network."""
        status, text = jobs_test.run((4, "traffic", 3, *SAME_BITS))
        self.assertEqual(status, 0, text)
        return jobs_test.results_of(text)

    def look_at_paths(self, transport, traffic, over_link, over_loopback):
        """Which wire carries, by the job's own account and by what the kernel counts."""
        between = transport if transport in NETWORKS else "mpi"
        within = "mpi" if transport == "mpi" else "host_shm, large tensors lent"
        bytes_between = bytes_within = 0
        for one, other in itertools.permutations(range(4), 2):
            same = one // RANKS_OF_A_HOST == other // RANKS_OF_A_HOST
            self.assertEqual(traffic["paths"][one][other], within if same else between, f"rank {one} to {other}")
            if same:
                bytes_within += traffic["bytes"][one][other]
            else:
                bytes_between += traffic["bytes"][one][other]
        self.assertGreater(bytes_between, 1 << 20)
        self.assertGreater(bytes_within, 1 << 20)
        self.assertGreater(over_link, bytes_between)
        self.assertLess(over_loopback, bytes_within / 2, "what stays on a host goes through no socket")

    def test_the_same_bits_over_every_path(self):
        expected = self.on_one_host()
        for transport, beside in itertools.product(("mpi", *NETWORKS, "auto"), ("false", "true")):
            with self.subTest(transport=transport, progress_thread=beside):
                link, loopback = self.hosts.sent("smplink"), self.hosts.sent("lo")
                results, traffic = self.trained("--smp.transport", transport, "--smp.progress_thread", beside)
                self.assertEqual(results, expected)
                self.look_at_paths(transport, traffic, self.hosts.sent("smplink") - link,
                                   self.hosts.sent("lo") - loopback)

    def test_a_slow_link(self):
        if not shutil.which("tc") or not succeeds(
                "ip", "netns", "exec", self.hosts.names["a"], "tc", "qdisc", "add", "dev", "smplink", "root", "tbf",
                "rate", "400mbit", "burst", "256kb", "latency", "200ms"):
            self.skipTest("there is no tc, or the kernel shapes no traffic")
        expected = self.on_one_host()
        for transport in "mpi", *NETWORKS:
            with self.subTest(transport=transport):
                self.assertEqual(self.trained("--smp.transport", transport)[0], expected)

    def test_a_killed_rank(self):
        for rank, transport, beside in (*itertools.product((1, 2), NETWORKS, ("false",)), *ONE_BESIDE):
            with self.subTest(rank=rank, transport=transport, progress_thread=beside):
                job = self.start("large", 1_000_000, "--smp.transport", transport, "--smp.progress_thread", beside)
                self.assertTrue(job.wait_for_step(3), "".join(job.output))
                os.kill(job.pids[rank], signal.SIGKILL)
                status, text, seconds = self.end_of(job)
                print(f"{transport}: rank {rank} killed: the job ended after {seconds:.2f} s", flush=True)
                self.assertNotEqual(status, 0)
                self.assertLess(seconds, SECONDS_TO_END, text)
                said = re.findall(r"^smp: (.*)", text, re.MULTILINE)
                self.assertNotEqual(said, [], text)
                lost = rf"rank {rank} is gone: its process {job.pids[rank]} |{lost_over(transport, rank)}"
                self.assertTrue(any(re.search(lost, line) for line in said), text)
                # Who shares its host ends at once, and may be missed first by those who look after one connection a second.
                beside = next(other for other in range(4) if other != rank and
                              other // RANKS_OF_A_HOST == rank // RANKS_OF_A_HOST)
                either = rf"{lost}|rank {beside} is gone: its process {job.pids[beside]} |{lost_over(transport, beside)}"
                for line in said:
                    self.assertRegex(line, either, text)

    def cut_link(self, *settings):
        """The first last words of the job after that, and all that it said before."""
        job = self.start("large", 1_000_000, *settings)
        self.assertTrue(job.wait_for_step(3), "".join(job.output))
        self.hosts.within("a", "ip", "link", "set", "smplink", "down")
        start = time.monotonic()
        # The launcher cannot reach the other host either, and may wait for it much longer.
        with job.changed:
            told = job.changed.wait_for(lambda: [line for line in job.output if line.startswith("smp: ")],
                                        SECONDS_TO_TELL)
        time.sleep(0.2)  # for what belongs to that line
        text = "".join(job.output)
        self.assertTrue(told, text)
        seconds = time.monotonic() - start
        print(f"link cut: after {seconds:.1f} s {told[0]}", end="", flush=True)
        return told[0], text, seconds

    def assert_other_host(self, one, others, text):
        for other in others:
            self.assertNotEqual(int(one) // RANKS_OF_A_HOST, int(other) // RANKS_OF_A_HOST, text)

    def lose_link(self, transport):
        """No stall ends the job, only the loss of a peer."""
        for side in "ab":   # else a quarter of an hour, if something was under way
            self.hosts.within(side, "sh", "-c", "echo 5 > /proc/sys/net/ipv4/tcp_retries2")
        told, text, _ = self.cut_link("--smp.transport", transport, "--smp.abort_seconds", 0, *UNWATCHED)
        found = re.match(rf"smp: rank (\d): {lost_over(transport, '([0-3])')}", told)
        self.assertIsNotNone(found, text)
        self.assert_other_host(found[1], [found[2]], told)

    def test_a_link_cut_under_ucx_where_the_kernel_gives_up_soon(self):
        self.lose_link("ucx")

    def test_a_link_cut_under_ofi_where_the_kernel_gives_up_soon(self):
        self.lose_link("ofi")

    def stall(self, transport):
        """Who does not answer is on the other host."""
        told, text, _ = self.cut_link("--smp.transport", transport, "--smp.stall_seconds", 4, "--smp.abort_seconds", 8,
                                      *UNWATCHED)
        found = re.match(r"smp: rank (\d): nothing happened for \d+ s in step", told)
        self.assertIsNotNone(found, text)
        silent = re.findall(r"rank (\d) does not answer", text)
        self.assertNotEqual(silent, [], text)
        self.assert_other_host(found[1], silent, text)

    def test_a_link_cut_under_ucx_that_nobody_tells_of(self):
        self.stall("ucx")

    def test_a_link_cut_under_ofi_that_nobody_tells_of(self):
        self.stall("ofi")

    def miss_machine(self, transport, beside="false"):
        """No kernel gives up, no stall ends the job."""
        told, text, seconds = self.cut_link("--smp.transport", transport, "--smp.progress_thread", beside, *WATCHED)
        found = re.match(r"smp: rank (\d): rank (\d) is gone, or the network to its machine '(\w+)' is cut: "
                         rf"the machine gave no sign of life for {SILENCE} s \(.+\); ", told)
        self.assertIsNotNone(found, text)
        self.assert_other_host(found[1], [found[2]], told)
        self.assertEqual(found[3], self.hosts.names["ab"[int(found[2]) // RANKS_OF_A_HOST]])
        self.assertGreater(seconds, SILENCE / 2)
        self.assertLess(seconds, SILENCE + 6, "and some for a busy machine")

    def test_a_link_cut_under_mpi_between_ranks_that_watch_each_other(self):
        self.miss_machine("auto")

    def test_a_link_cut_under_ucx_between_ranks_that_watch_each_other(self):
        self.miss_machine("ucx")

    def test_a_link_cut_under_ucx_beside_a_progress_thread(self):
        self.miss_machine("ucx", "true")

    def test_a_link_cut_under_ofi_between_ranks_that_watch_each_other(self):
        self.miss_machine("ofi")

    def test_a_rank_that_is_stopped_is_alive(self):
        job = self.start("traffic", 100, "--smp.transport", "ucx", *WATCHED)
        self.assertTrue(job.wait_for_step(3), "".join(job.output))
        os.kill(job.pids[2], signal.SIGSTOP)
        time.sleep(2.5 * SILENCE)
        self.assertIsNone(job.process.poll(), "it was over before")
        os.kill(job.pids[2], signal.SIGCONT)
        status, text, _ = self.end_of(job)
        self.assertEqual(status, 0, text)
        self.assertNotIn("gone", text)

    def test_a_rank_that_ends_under_a_launcher_that_looks_away(self):
        """libfabric tells at once whoever sends to it at that moment, then again; and others some seconds later."""
        for _ in range(3):
            pid, text = self.end_of_a_rank_that_no_launcher_sees()
            if not re.search(rf"rank [01]: {lost_over('ofi', 2)}", text):
                break
        self.assertRegex(text, rf"smp: rank [01]: rank 2 is gone: its process {pid} on 'smp\d+b' has ended, or given up")

    def end_of_a_rank_that_no_launcher_sees(self):
        """Its process, and what all others said."""
        job = self.start("large", 1_000_000, "--smp.transport", "ofi", *WATCHED)
        self.assertTrue(job.wait_for_step(3), "".join(job.output))
        os.kill(job.process.pid, signal.SIGSTOP)
        os.kill(job.pids[2], signal.SIGKILL)
        time.sleep(6)   # what ranks say goes through it
        os.kill(job.process.pid, signal.SIGCONT)
        status, text, _ = self.end_of(job)
        self.assertNotEqual(status, 0)
        return job.pids[2], text

    def test_a_killed_rank_whose_forked_child_lives_on(self):
        """It keeps none of the connections by which the other host sees the rank; MPI's own it has."""
        rank = 1   # beside the launcher, which is stopped: Open MPI stops ranks there as well, once it has something to say
        for _ in range(3):   # on a busy machine the rank beside it may end, and be missed, before it is
            seen, text = self.kill_rank_with_a_helper(rank)
            if seen:
                return
        self.fail(text)

    def kill_rank_with_a_helper(self, rank):
        """Whether somebody misses that rank's process; all that was said."""
        job = self.start("helper", 1_000_000, rank, 1000, *WATCHED)
        self.assertTrue(job.wait_for_step(3), "".join(job.output))
        helper = int(re.search(r"helper pid (\d+)", "".join(job.output))[1])
        self.addCleanup(lambda: jobs_test.is_alive(helper) and os.kill(helper, signal.SIGKILL))
        os.kill(job.process.pid, signal.SIGSTOP)   # nobody but the ranks sees it
        start = time.monotonic()
        os.kill(job.pids[rank], signal.SIGKILL)
        others = [job.pids[2], job.pids[3]]
        while any(map(jobs_test.is_alive, others)) and time.monotonic() - start < SECONDS_TO_TELL:
            time.sleep(0.05)
        seconds = time.monotonic() - start
        print(f"rank {rank} killed, its child lives: the other host's ranks ended after {seconds:.1f} s", flush=True)
        self.assertTrue(jobs_test.is_alive(helper))
        os.kill(helper, signal.SIGKILL)
        os.kill(job.process.pid, signal.SIGCONT)
        status, text, _ = self.end_of(job)
        self.assertNotEqual(status, 0)
        self.assertLess(seconds, SECONDS_TO_END + 5, text)   # a launcher gets 2 s, ranks that end 5
        return re.search(rf"rank {rank} is gone: its process {job.pids[rank]} on '\w+' has ended, or given up", text), text

    def test_an_interface_that_is_missing(self):
        status, text, _ = self.end_of(self.start("traffic", 1, "--smp.keep_alive_interface", "eth77"))
        self.assertNotEqual(status, 0)
        names = "|".join(self.hosts.names.values())
        self.assertRegex(text, rf"keep_alive_interface = eth77: '(?:{names})' has no interface of this name that is up "
                               rf"and has an address; it has smplink \({NET}\.[12]\)")

    def test_hosts_that_do_not_reach_each_other_over_an_interface(self):
        """Two devices of their own with one address, as containers' bridges have: the job trains, and says so."""
        for side in "ab":
            self.hosts.within(side, "ip", "link", "add", "bridge77", "type", "veth", "peer", "name", "bridge78")
            self.hosts.within(side, "ip", "link", "set", "bridge78", "up")
            self.hosts.within(side, "ip", "addr", "add", "10.99.0.1/24", "dev", "bridge77")
            self.hosts.within(side, "ip", "link", "set", "bridge77", "up")
        status, text, _ = self.end_of(self.start("traffic", 1, "--smp.keep_alive_interface", "bridge77"))
        self.assertEqual(status, 0, text)
        self.assertRegex(text, r"cannot watch those of 'smp\d+[ab]', because no TCP connection could be made")
        status, text, _ = self.end_of(self.start("traffic", 1))
        self.assertEqual(status, 0, text)
        self.assertNotIn("cannot watch", text)


if __name__ == "__main__":
    split = sys.argv.index("--")
    jobs_test.JOB = sys.argv[1]
    MPIRUN = jobs_test.MPIRUN = sys.argv[2:split]
    if problem := missing():
        print(f"skipped: {problem}")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[split + 1:]], verbosity=2)
