"""Whole jobs under mpirun: ranks that die, leave, stall or disagree end the job in time, with a
message that says who.

    jobs_test.py JOB MPIRUN... -- [unittest arguments]

JOB is the program of job/main.cpp, MPIRUN the command that starts it. SMP_BUILT names the folder of the built tool
smp, without which nothing is drawn.
"""

import contextlib
import ctypes
import glob
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from apart import Apart

JOB = ""
MPIRUN = []

# A killed rank ends the job within 2 s on a free machine; a busy one gets one more.
SECONDS_TO_END = 3.0
# Those who leave let the launcher end the job for 2 s, then try to end it for 5 s.
SECONDS_TO_NOTICE_WHILE_LEAVING = 2 + 5 + SECONDS_TO_END
SECONDS_TO_START = 60.0

REPLAYED = ("--smp.static_mode", "true")
REPLAYED_STEP = 10  # by then steps are replayed, as rank 0 says once
SAID_OF_REPLAY = "static_mode: from step "


def command(*ranks_and_arguments, mpirun=None):
    """mpirun with one block of equal ranks for each (ranks, arguments...)."""
    line = list(mpirun or MPIRUN)
    for block, (ranks, *arguments) in enumerate(ranks_and_arguments):
        line += ([":"] if block else []) + ["-n", str(ranks), JOB, *map(str, arguments)]
    return line


def run(*ranks_and_arguments):
    """Runs a job to its end; returns its exit status and all that it said."""
    done = subprocess.run(command(*ranks_and_arguments), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=SECONDS_TO_START)
    return done.returncode, done.stdout


def lines_of_ours(text):
    """Last words of the library, its warnings and errors."""
    return re.findall(r"^(?:smp: |\[smp [WE]).*", text, re.MULTILINE)


def results_of(text):
    """What each rank says of what it has computed, losses and checksums in all bits (results.h)."""
    number = "-?0x[0-9a-fp.+-]+"
    found = re.findall(rf"^results of rank (\d+): (sum [0-9a-f]{{16}}, losses(?: {number})+)$", text, re.MULTILINE)
    return {int(rank): said for rank, said in found}


def traffic_of(text):
    """Paths and bytes from rank to rank, as a job's run log has them."""
    return json.loads(re.search(r"^traffic (.*)$", text, re.MULTILINE)[1])


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class RunningJob:
    """A job in the background: its ranks' process numbers and the steps it has made."""

    def __init__(self, ranks, *arguments, own_folders=True, temporary=None, mpirun=None):
        """@param own_folders  it has folders of its own for MPI's shared memory and for temporary files
        @param temporary  that for temporary files, if it is to outlive the job"""
        self.shared_memory = tempfile.TemporaryDirectory(dir="/dev/shm", prefix="jobs_test_")
        self.temporary = tempfile.TemporaryDirectory(prefix="jobs_test_", ignore_cleanup_errors=True)
        environment = dict(os.environ)
        if own_folders:
            environment["OMPI_MCA_btl_vader_backing_directory"] = self.shared_memory.name
            environment["TMPDIR"] = temporary or self.temporary.name
        self.ranks = ranks
        self.pids = {}
        self.output = []
        self.changed = threading.Condition()
        self.steps = 0
        self.process = subprocess.Popen(command((ranks, *arguments), mpirun=mpirun), stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True, env=environment)
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self.changed:
                self.output.append(line)
                if found := re.match(r"rank (\d+) pid (\d+)", line):
                    self.pids[int(found[1])] = int(found[2])
                elif found := re.match(r"step (\d+)", line):
                    self.steps = int(found[1])
                self.changed.notify()

    def wait_for_step(self, step):
        with self.changed:
            return self.changed.wait_for(
                lambda: self.steps >= step and len(self.pids) == self.ranks, SECONDS_TO_START)

    def wait(self):
        """The exit status, and the seconds until the job and all its processes were gone."""
        start = time.monotonic()
        status = self.process.wait(timeout=SECONDS_TO_START)
        while any(map(is_alive, self.pids.values())):
            if time.monotonic() - start > SECONDS_TO_START:
                break
            time.sleep(0.01)
        return status, time.monotonic() - start

    def left(self):
        """What is in its folders."""
        return [os.path.join(folder.name, name) for folder in (self.shared_memory, self.temporary)
                for name in os.listdir(folder.name)]

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pid in filter(is_alive, self.pids.values()):
            os.kill(pid, signal.SIGKILL)
        self.reader.join()
        self.process.stdout.close()
        self.shared_memory.cleanup()
        self.temporary.cleanup()


class KilledRank(unittest.TestCase):
    """SIGKILL of any rank in the middle of training ends the job, and nothing is left."""

    def kill(self, rank, action="train", *settings, step=5):
        """What the job said."""
        job = RunningJob(4, action, 1_000_000, *settings)
        try:
            self.assertTrue(job.wait_for_step(step), "".join(job.output))
            os.kill(job.pids[rank], signal.SIGKILL)
            status, seconds = job.wait()
            print(f"rank {rank} killed: the job ended after {seconds:.2f} s", flush=True)
            job.reader.join()
            text = "".join(job.output)
            self.assertNotEqual(status, 0)
            self.assertLess(seconds, SECONDS_TO_END)
            self.assertEqual(re.findall(r"^smp: rank (\d) is gone: its process (\d+)", text, re.MULTILINE),
                             [(str(rank), str(job.pids[rank]))], text)
            self.assertEqual(len(lines_of_ours(text)), 1, text)
            self.assertEqual([pid for pid in job.pids.values() if is_alive(pid)], [])
            self.assertEqual(job.left(), [])
            return text
        finally:
            job.close()

    def test_rank_0(self):
        self.kill(0)

    def test_rank_1(self):
        self.kill(1)

    def test_rank_2(self):
        self.kill(2)

    def test_rank_3(self):
        self.kill(3)

    def test_rank_of_a_replayed_step(self):
        text = self.kill(2, "train", *REPLAYED, step=REPLAYED_STEP)
        self.assertIn(SAID_OF_REPLAY, text)

    def test_rank_whose_memory_others_read(self):
        for rank in (1, 2, 3):
            self.kill(rank, "large", "--smp.lend_tensors", "false")

    def test_rank_whose_memory_others_have_borrowed(self):
        for rank in (1, 2, 3):
            self.kill(rank, "large")

    def kill_while_the_launcher_is_stopped(self, job, rank):
        """The seconds until all ranks are gone, and what they said."""
        try:
            os.kill(job.process.pid, signal.SIGSTOP)
            start = time.monotonic()
            os.kill(job.pids[rank], signal.SIGKILL)
            while any(map(is_alive, job.pids.values())) and time.monotonic() - start < SECONDS_TO_START:
                time.sleep(0.002)
            seconds = time.monotonic() - start
            print(f"rank {rank} killed while mpirun was stopped: the others ended after {seconds:.3f} s", flush=True)
            os.kill(job.process.pid, signal.SIGCONT)
            job.wait()
            job.reader.join()
            text = "".join(job.output)
            return seconds, text
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(job.process.pid, signal.SIGCONT)
            job.close()

    def test_while_the_launcher_looks_away(self):
        """The kernel tells the other ranks, within 0.05 s where they get a core at once."""
        job = RunningJob(4, "train", 1_000_000)
        self.assertTrue(job.wait_for_step(5), "".join(job.output))
        seconds, text = self.kill_while_the_launcher_is_stopped(job, 2)
        self.assertLess(seconds, SECONDS_TO_END)
        self.assertEqual(re.findall(r"^smp: rank (\d) is gone", text, re.MULTILINE), ["2"], text)
        self.assertEqual(len(lines_of_ours(text)), 1, text)

    def test_while_the_others_leave(self):
        job = RunningJob(4, "linger", 3, 2)
        self.assertTrue(job.wait_for_step(3), "".join(job.output))
        time.sleep(0.5)  # by then they wait for rank 2
        seconds, text = self.kill_while_the_launcher_is_stopped(job, 2)
        said = re.findall(r"^smp: rank (\d): rank (\d) is gone", text, re.MULTILINE)
        self.assertLessEqual(set(said), {("0", "2"), ("1", "2"), ("3", "2")}, text)
        self.assertNotEqual(said, [], text)
        self.assertEqual(len(said), len(set(said)), text)
        self.assertLess(seconds, SECONDS_TO_NOTICE_WHILE_LEAVING)


class ForkedHelper(unittest.TestCase):
    """A child that a rank has forked keeps nobody from seeing the rank end, and ends as it likes."""

    def helper_of(self, job):
        with job.changed:
            self.assertTrue(job.changed.wait_for(lambda: re.search(r"helper pid (\d+)", "".join(job.output)),
                                                 SECONDS_TO_START))
        return int(re.search(r"helper pid (\d+)", "".join(job.output))[1])

    def test_of_a_rank_that_is_killed(self):
        for transport in "auto", "ucx", "ofi":  # over MPI it is the launcher that sees it
            with self.subTest(transport=transport):
                job = RunningJob(3, "helper", 1_000_000, 1, 1000, "--smp.transport", transport)
                helper = None
                try:
                    self.assertTrue(job.wait_for_step(5), "".join(job.output))
                    helper = self.helper_of(job)
                    os.kill(job.process.pid, signal.SIGSTOP)  # the others see it by themselves
                    start = time.monotonic()
                    os.kill(job.pids[1], signal.SIGKILL)
                    while any(map(is_alive, job.pids.values())) and time.monotonic() - start < SECONDS_TO_START:
                        time.sleep(0.01)
                    seconds = time.monotonic() - start
                    self.assertTrue(is_alive(helper), "it may outlive its rank")
                    os.kill(helper, signal.SIGKILL)  # or the output of the job has no end
                    os.kill(job.process.pid, signal.SIGCONT)
                    job.wait()
                    job.reader.join()
                    text = "".join(job.output)
                    self.assertLess(seconds, SECONDS_TO_END, text)
                    self.assertEqual(re.findall(r"^smp: rank (\d) is gone", text, re.MULTILINE), ["1"], text)
                    self.assertEqual(len(lines_of_ours(text)), 1, text)
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(job.process.pid, signal.SIGCONT)
                    if helper is not None and is_alive(helper):
                        os.kill(helper, signal.SIGKILL)
                    job.close()

    def test_of_a_rank_that_ends_well(self):
        status, text = run((3, "helper", 50, 1, 2))
        self.assertEqual(status, 0, text)
        self.assertIn("the helper is done", text)
        self.assertIn("the helper ended with status 0\n", text)
        self.assertEqual(lines_of_ours(text), [], text)

    def test_that_returns_from_main(self):
        status, text = run((3, "worker", 50, 1))
        self.assertEqual(status, 0, text)
        self.assertIn("step 12", text)
        self.assertEqual(lines_of_ours(text), [], text)

    def test_that_is_asked_to_end_says_nothing(self):
        """A launcher asks all of a rank's processes."""
        job = RunningJob(2, "helper", 1_000_000, 1, 1000)
        try:
            self.assertTrue(job.wait_for_step(5), "".join(job.output))
            helper = self.helper_of(job)
            os.kill(helper, signal.SIGTERM)
            while is_alive(helper):
                time.sleep(0.01)
            time.sleep(0.5)
            self.assertEqual(lines_of_ours("".join(job.output)), [])
            self.assertTrue(all(map(is_alive, job.pids.values())))
        finally:
            job.close()


class Ends(unittest.TestCase):
    """No job that has failed ends with 0, however its program ends, and it is said why."""

    def fails(self, *arguments, said=r"^smp: "):
        for rank in 0, 1:
            with self.subTest(arguments=arguments, rank=rank):
                status, text = run((3, *arguments, rank))
                self.assertNotEqual(status, 0, text)
                self.assertRegex(text, re.compile(said, re.MULTILINE))
                self.assertNotIn("step 3", text)

    def test_by_exit(self):
        for code in 0, 256, 7:
            self.fails("exit_in_main", code, said=rf"^smp: rank \d: the program called exit\({code}\) before")

    def test_by_other_exits(self):
        for action in "quick_exit_in_main", "vanish":
            for code in 0, 256:
                self.fails(action, code, said=r"^smp: rank \d is gone")

    def test_by_terminate(self):
        self.fails("terminate", 0, said=r"^smp: rank \d: std::terminate was called")

    def test_by_abort(self):
        self.fails("abort", 0, said=r"^smp: .*SIGABRT")

    def test_by_what_main_returns(self):
        for code in 0, 256, -256:
            self.fails("outlive", code, said=r"^smp: rank \d: the disk is full")
            self.fails("return", code, said=r"^")

    def test_of_sessions_that_main_leaves_to_exit(self):
        for kept in "static", "heap":
            with self.subTest(kept=kept):
                status, text = run((3, kept, 4, 0, 0))
                self.assertEqual((status, lines_of_ours(text)), (0, []), text)
                status, text = run((3, kept, 4, 7, 1))
                self.assertEqual((status, lines_of_ours(text)), (7, []), text)

    def test_of_one_that_a_rank_leaves_early(self):
        for kept in "static", "heap":
            with self.subTest(kept=kept):
                status, text = run((2, kept, 8, 0, 0), (1, kept, 3, 0, 0))
                self.assertNotEqual(status, 0, text)
                self.assertRegex(text, r"step 4 cannot \w+: rank 2 left after step 3")

    def test_by_exit_in_a_module(self):
        self.fails("exit", 0, said=r"^smp: .*the program called exit\(\) inside a step")

    def test_by_exceptions(self):
        self.fails("module", 0, said=r"^smp: rank \d, .*the mat is too short")


class KilledRun(unittest.TestCase):
    """What a run leaves one of whose ranks was killed can be drawn, up to the step in which it ended."""

    STEP = 12

    @staticmethod
    def words(file):
        """What a reader sees of a page."""
        with open(file, encoding="utf-8") as page:
            seen = re.sub(r"<(style|script)\b.*?</\1>", "", page.read(), flags=re.DOTALL)
        return " ".join(re.sub(r"<[^>]*>", " ", seen).split())

    def leave_a_run(self, folder, rank, *settings):
        """The folder of a run that ended when `rank` was killed."""
        job = RunningJob(4, "log", 1_000_000, *settings, temporary=folder)
        try:
            self.assertTrue(job.wait_for_step(self.STEP), "".join(job.output))
            os.kill(job.pids[rank], signal.SIGKILL)
            status, _ = job.wait()
            job.reader.join()
            text = "".join(job.output)
            self.assertNotEqual(status, 0, text)
            self.assertEqual(re.findall(r"^smp: rank (\d) is gone", text, re.MULTILINE), [str(rank)], text)
        finally:
            job.close()
        found = glob.glob(f"{folder}/smp_integration_job/log-*")
        self.assertEqual(len(found), 1, text)
        return found[0]

    def tool(self, command, run_folder):
        """What the tool smp says of a run."""
        done = subprocess.run([os.path.join(os.environ["SMP_BUILT"], "smp-cli"), command, run_folder],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS_TO_START)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def drawn(self, rank, *settings):
        if "SMP_BUILT" not in os.environ:
            self.skipTest("SMP_BUILT does not say where the tool smp is")
        with tempfile.TemporaryDirectory() as folder:
            run_folder = self.leave_a_run(folder, rank, *settings)
            said = self.tool("report", run_folder)
            found = re.search(r"log on 4 ranks, .*: (\d+) steps; it still runs, or did not end as it should", said)
            self.assertIsNotNone(found, said)
            steps = int(found[1])
            self.assertGreaterEqual(steps, self.STEP - 1, said)  # the last may not have been written down
            with open(f"{run_folder}/metrics.csv", encoding="utf-8") as table:
                logged = [line.split(",")[0] for line in table]
            self.assertEqual(logged, ["step", *map(str, range(1, steps + 1))])
            page = self.words(f"{run_folder}/report.html")
            self.assertRegex(page, rf"last logged step step {steps} loss \d")
            page = self.words(f"{run_folder}/timeline.html")
            last = re.search(r"Step (\d+), in which the run ended: .* on 4 ranks", page)
            self.assertIsNotNone(last, page)
            self.assertIn(int(last[1]), (steps, steps + 1))
            self.assertIn(f"wrote {run_folder}/trace-chrome.json", self.tool("trace", run_folder))
            with open(f"{run_folder}/trace-chrome.json", encoding="utf-8") as trace:
                events = json.load(trace)["traceEvents"]
            named = {event["args"]["name"] for event in events if event["name"] == "process_name"}
            self.assertEqual(named, {f"rank {number}" for number in range(4)})
            self.assertTrue(any(event["ph"] == "X" for event in events))

    def test_that_recorded_its_steps(self):
        for rank in (0, 2):
            self.drawn(rank)

    def test_that_replayed_its_steps(self):
        self.drawn(2, *REPLAYED)


class KilledLauncher(unittest.TestCase):
    """SIGKILL of mpirun ends the job, and nothing of it stays in /dev/shm."""

    def segments(self, job):
        """Files in /dev/shm that the ranks share, which have no names any more."""
        found = set()
        for pid in job.pids.values():
            with open(f"/proc/{pid}/maps", encoding="ascii") as maps:
                found |= set(re.findall(r"/dev/shm/(\S+)(?: \(deleted\))?", maps.read()))
        self.assertNotEqual(found, set())
        self.assertEqual(found & set(os.listdir("/dev/shm")), set())
        return found

    def test_in_the_middle_of_training(self):
        job = RunningJob(4, "train", 1_000_000, own_folders=False)
        try:
            self.assertTrue(job.wait_for_step(5), "".join(job.output))
            segments = self.segments(job)
            job.process.kill()
            _, seconds = job.wait()
            print(f"mpirun killed: the job ended after {seconds:.2f} s", flush=True)
            self.assertLess(seconds, SECONDS_TO_END)
            self.assertEqual([pid for pid in job.pids.values() if is_alive(pid)], [])
            self.assertEqual(segments & set(os.listdir("/dev/shm")), set())
        finally:
            job.close()

    def test_a_job_that_ends_well_leaves_nothing_and_says_nothing(self):
        job = RunningJob(4, "train", 300, own_folders=False)
        try:
            self.assertTrue(job.wait_for_step(5), "".join(job.output))
            segments = self.segments(job)
            status, _ = job.wait()
            job.reader.join()
            text = "".join(job.output)
            self.assertEqual(status, 0, text)
            self.assertNotIn("system call", text)
            self.assertEqual(segments & set(os.listdir("/dev/shm")), set())
        finally:
            job.close()


class DeathNotice(unittest.TestCase):
    """Who waits for a rank that is killed learns of it from the kernel, whatever the launcher does."""

    SECONDS_TO_KNOW = 0.05
    TRIES = 5  # of which the best counts: on a busy machine a rank gets a core late

    def seconds_until_known(self, *settings):
        """From the signal until the last of the others knows, both read by these processes themselves."""
        job = RunningJob(4, "watch", 1000, 2, *settings)
        try:
            self.assertTrue(job.wait_for_step(1), "".join(job.output))
            time.sleep(0.3)  # by then the others wait for rank 2, which sleeps
            os.kill(job.process.pid, signal.SIGSTOP)
            killed = time.monotonic_ns()
            os.kill(job.pids[2], signal.SIGKILL)
            while any(map(is_alive, job.pids.values())) and time.monotonic_ns() - killed < SECONDS_TO_START * 1e9:
                time.sleep(0.002)
            os.kill(job.process.pid, signal.SIGCONT)
            job.wait()
            job.reader.join()
            text = "".join(job.output)
            said = re.findall(r"^rank (\d) knows at (\d+)$", text, re.MULTILINE)
            known = {int(rank): int(when) for rank, when in said}
            self.assertEqual(set(known), {0, 1, 3}, text)
            self.assertGreater(min(known.values()), killed, text)
            return (max(known.values()) - killed) / 1e9
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(job.process.pid, signal.SIGCONT)
            job.close()

    def best(self, *settings):
        seconds = []
        while len(seconds) < self.TRIES and min(seconds, default=1) > self.SECONDS_TO_KNOW:
            seconds.append(self.seconds_until_known(*settings))
        print("all others knew after", ", ".join(f"{each * 1000:.1f} ms" for each in seconds), flush=True)
        self.assertLess(min(seconds), self.SECONDS_TO_KNOW)

    def test_of_who_spins_while_it_waits(self):
        self.best("--smp.idle_policy", "spin")

    def test_of_who_yields_while_it_waits(self):
        self.best("--smp.idle_policy", "yield")

    def test_of_who_has_networks_beside(self):
        for transport in "ucx", "ofi":
            self.best("--smp.transport", transport)


class Leftovers(unittest.TestCase):
    """However a job ends, no file, no folder, no socket and no memory with a name is left of it."""

    TRANSPORTS = "auto", "mpi", "ucx", "ofi"

    def setUp(self):
        try:
            self.apart = Apart(JOB)
        except OSError as problem:
            self.skipTest(str(problem))
        self.addCleanup(self.apart.close)
        self.assertEqual(self.apart.content(), set())

    def end(self, *arguments, by=None, but=lambda name: False):
        """@param by  ends the job in the midst of training; else it ends by itself
        @param but  of what may be left, by its name"""
        for transport in self.TRANSPORTS:
            with self.subTest(transport=transport):
                job = RunningJob(3, *arguments, "--smp.transport", transport, own_folders=False,
                                 mpirun=self.apart.inside(*MPIRUN))
                try:
                    if by is not None:
                        self.assertTrue(job.wait_for_step(3), "".join(job.output))
                        self.assertNotEqual(self.apart.content(), set(), "MPI has a folder while it runs")
                        by(job)
                    job.wait()
                    job.reader.join()
                    text = "".join(job.output)
                    self.assertEqual(len(job.pids), 3, text)
                    self.assertEqual([pid for pid in job.pids.values() if is_alive(pid)], [], text)
                    self.assertEqual(self.apart.left(but), set(), text)
                finally:
                    job.close()

    def test_after_the_last_step(self):
        self.end("train", 20)

    def test_after_an_exception(self):
        self.end("throw", 5, 1)

    def test_after_an_exception_of_a_module(self):
        self.end("module", 0, 1)

    def test_after_a_fault(self):
        self.end("fault", 0, 1)

    def test_after_a_rank_was_killed(self):
        self.end("large", 1_000_000, by=lambda job: os.kill(job.pids[1], signal.SIGKILL))

    def test_after_a_rank_was_asked_to_end(self):
        self.end("train", 1_000_000, by=lambda job: os.kill(job.pids[1], signal.SIGTERM))

    def test_after_the_job_was_asked_to_end(self):
        self.end("train", 1_000_000, by=lambda job: job.process.terminate())

    def test_after_the_launcher_was_killed(self):
        """Nobody is left who would remove its own folder."""
        self.end("train", 1_000_000, by=lambda job: job.process.kill(), but=lambda name: name.startswith("/tmp/ompi."))


class SmallSharedMemory(unittest.TestCase):
    """A container's /dev/shm of 64 MiB is enough for tensors of any size: the same bits as elsewhere."""

    ROWS = 500_000  # 16 MB for each tensor of a batch; each rank holds several

    def trained(self, *settings, mpirun=None):
        line = command((4, "traffic", 2, self.ROWS, "--smp.intra_op_threads", 1, *settings), mpirun=mpirun)
        done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(lines_of_ours(done.stdout), [], "a path that does not work is left for another one")
        results = results_of(done.stdout)
        self.assertEqual(set(results), set(range(4)), done.stdout)
        self.assertGreater(sum(map(sum, traffic_of(done.stdout)["bytes"])), 64 << 20)
        return results

    def test_of_a_container(self):
        try:
            apart = Apart(JOB, shared_memory="64m")
        except OSError as problem:
            self.skipTest(str(problem))
        self.addCleanup(apart.close)
        here = self.trained()
        for settings in (), ("--smp.lend_tensors", "false"), ("--smp.transport", "mpi"):
            with self.subTest(settings=settings):
                self.assertEqual(self.trained(*settings, mpirun=apart.inside(*MPIRUN)), here)


class StoppedRank(unittest.TestCase):
    """A stopped rank is named with what it did last, once, by one rank."""

    LIMITS = ("--smp.stall_seconds", 1, "--smp.abort_seconds", 4)

    def named(self, text, rank):
        stopped = re.findall(r"rank (\d) is stopped", text)
        self.assertEqual(set(stopped), {str(rank)}, text)
        module = rf"({rank}(\.\w+)?{'|<body>|<root>' if rank == 0 else ''})"  # or its child
        self.assertRegex(text, rf"rank {rank} is stopped.*module {module} \((for|back)ward\), microbatch \d")
        self.assertRegex(text, rf"rank {rank} is stopped.*nothing was seen of it for [0-6](\.\d)? s")
        return stopped

    def stopped(self, rank, *settings, step=5):
        """What the job said."""
        job = RunningJob(4, "train", 1_000_000, *self.LIMITS, *settings)
        try:
            self.assertTrue(job.wait_for_step(step), "".join(job.output))
            os.kill(job.pids[rank], signal.SIGSTOP)
            status, seconds = job.wait()
            job.reader.join()
            text = "".join(job.output)
            print(f"rank {rank} stopped: the job ended after {seconds:.2f} s", flush=True)
            self.assertNotEqual(status, 0)
            self.assertLess(seconds, 12)
            self.assertEqual(len(self.named(text, rank)), 2, text)  # a report, then the end
            self.assertEqual(len(re.findall(r"^smp: ", text, re.MULTILINE)), 1, text)
            last = text[text.index("\nsmp: "):]
            self.assertRegex(last, r"rank \d,? ?.* waits for .*, for [3-6](\.\d)? s")
            return text
        finally:
            job.close()

    def test_zero(self):
        self.stopped(0)

    def test_one(self):
        self.stopped(1)

    def test_three(self):
        self.stopped(3)

    def test_in_a_replayed_step(self):
        self.assertIn(SAID_OF_REPLAY, self.stopped(1, *REPLAYED, step=REPLAYED_STEP))

    def test_that_is_let_go_on_only_gets_a_report(self):
        job = RunningJob(4, "train", 1_000_000, "--smp.stall_seconds", 1)
        try:
            self.assertTrue(job.wait_for_step(5), "".join(job.output))
            os.kill(job.pids[2], signal.SIGSTOP)
            time.sleep(4)
            with job.changed:
                text = "".join(job.output)
            os.kill(job.pids[2], signal.SIGCONT)
            self.assertEqual(len(self.named(text, 2)), 1, text)
            self.assertIsNone(job.process.poll())
            os.kill(job.pids[3], signal.SIGKILL)
            job.wait()
        finally:
            job.close()


class StoppedReplica(unittest.TestCase):
    """The same where ranks train replicas: two pipelines of two stages."""

    LIMITS = ("--smp.pipeline_parallel_degree", 2, *StoppedRank.LIMITS)

    def stopped(self, rank):
        job = RunningJob(4, "train", 1_000_000, *self.LIMITS)
        try:
            self.assertTrue(job.wait_for_step(5), "".join(job.output))
            os.kill(job.pids[rank], signal.SIGSTOP)
            status, seconds = job.wait()
            job.reader.join()
            text = "".join(job.output)
            print(f"rank {rank} of a replica stopped: the job ended after {seconds:.2f} s", flush=True)
            self.assertNotEqual(status, 0)
            self.assertLess(seconds, 15)
            self.assertEqual(set(re.findall(r"rank (\d) is stopped", text)), {str(rank)}, text)
            self.assertEqual(len(re.findall(r"^smp: ", text, re.MULTILINE)), 1, text)
        finally:
            job.close()

    def test_first_stage_of_the_first(self):
        self.stopped(0)

    def test_last_stage_of_the_second(self):
        self.stopped(3)


class StoppedSliceHolder(unittest.TestCase):
    """The same where ranks share layers: in most of their time they meet in a collective."""

    LIMITS = ("--smp.pipeline_parallel_degree", 1, "--smp.tensor_parallel_degree", 2, *StoppedRank.LIMITS)

    def ended(self, number):
        job = RunningJob(4, "train", 1_000_000, *self.LIMITS)
        try:
            self.assertTrue(job.wait_for_step(5), "".join(job.output))
            os.kill(job.pids[1], number)
            status, seconds = job.wait()
            job.reader.join()
            print(f"a rank that shares layers got signal {number}: the job ended after {seconds:.2f} s", flush=True)
            self.assertNotEqual(status, 0)
            self.assertLess(seconds, 15)
            return "".join(job.output)
        finally:
            job.close()

    def test_stopped(self):
        text = self.ended(signal.SIGSTOP)
        self.assertEqual(set(re.findall(r"rank (\d) is stopped", text)), {"1"}, text)
        self.assertRegex(text, r"waits for .* on rank 1 of (TP_GROUP {0, 1}|DP_GROUP {0, 1, 2, 3})")
        self.assertEqual(len(re.findall(r"^smp: ", text, re.MULTILINE)), 1, text)

    def test_killed(self):
        self.assertRegex(self.ended(signal.SIGKILL), r"smp: rank 1 is gone: its process")


class CutConnection(unittest.TestCase):
    """A connection between ranks that is closed under MPI, which may not say so, ends the job."""

    PIDFD_OPEN, PIDFD_GETFD = 434, 438  # of Linux, on every processor
    LIMITS = ("--smp.transport", "mpi", "--smp.stall_seconds", 5)

    @classmethod
    def other_descriptor(cls, pid, descriptor):
        """A copy of another process's descriptor, or -1 where the machine forbids that."""
        call = ctypes.CDLL(None, use_errno=True).syscall
        process = call(cls.PIDFD_OPEN, pid, 0)
        try:
            return call(cls.PIDFD_GETFD, process, descriptor, 0)
        finally:
            os.close(process)

    @staticmethod
    def connections(pid):
        """(own port, other port, descriptor) of each open TCP connection of a process."""
        own = {}
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if found := re.match(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{descriptor}")):
                    own[found[1]] = int(descriptor)
        open_state = "01"
        for table in "tcp", "tcp6":
            with open(f"/proc/{pid}/net/{table}", encoding="ascii") as lines:
                for line in list(lines)[1:]:
                    fields = line.split()
                    if fields[3] == open_state and fields[9] in own:
                        yield fields[1].split(":")[1], fields[2].split(":")[1], own[fields[9]]

    def cut(self, one, other):
        """Closes every connection between two processes."""
        with contextlib.suppress(FileNotFoundError):  # they are ending
            ends = {(theirs, ours) for ours, theirs, _ in self.connections(other)}
            for ours, theirs, descriptor in self.connections(one):
                if (ours, theirs) not in ends:
                    continue
                copy = self.other_descriptor(one, descriptor)
                if copy < 0:
                    self.skipTest("this machine lets no process have a descriptor of another")
                with socket.socket(fileno=copy) as connection, contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def test_under_mpi(self):
        btl = MPIRUN.index("btl") + 1 if "btl" in MPIRUN else len(MPIRUN)
        over_tcp = MPIRUN[:btl] + ([] if "btl" in MPIRUN else ["--mca", "btl"]) + ["tcp,self"]
        job = RunningJob(2, "train", 1_000_000, *self.LIMITS, mpirun=over_tcp + MPIRUN[btl + 1:])
        try:
            self.assertTrue(job.wait_for_step(3), "".join(job.output))
            start = time.monotonic()
            while job.process.poll() is None and time.monotonic() - start < SECONDS_TO_START:
                self.cut(job.pids[0], job.pids[1])  # MPI may connect again, and lose nothing
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.process.wait(timeout=2)
            status, _ = job.wait()
            job.reader.join()
            text = "".join(job.output)
            print(f"connection cut: the job ended after {time.monotonic() - start:.2f} s", flush=True)
            self.assertNotEqual(status, 0)
            said = re.findall(r"^smp: .*", text, re.MULTILINE)
            # Open MPI ends the process, with a line of its own, if it cannot repeat a send.
            if "FATAL" in text:
                self.assertLessEqual(len(said), 1, text)
                return
            self.assertEqual(len(said), 1, text)
            self.assertRegex(said[0], r"rank \d: .*connection .*(has lost|was cut)")
        finally:
            job.close()


class Interrupted(unittest.TestCase):
    """Who is asked to end says where the run is, once."""

    def interrupt(self, send):
        with tempfile.TemporaryDirectory() as folder:
            job = RunningJob(3, "log", 1_000_000, temporary=folder)
            try:
                self.assertTrue(job.wait_for_step(5), "".join(job.output))
                send(job)
                job.wait()
                job.reader.join()
                text = "".join(job.output)
                said = re.findall(r"^smp: asked to end; the numbers of (\d+) steps are in (\S+)/metrics.jsonl, "
                                  r"and `smp report (\S+)`", text, re.MULTILINE)
                self.assertEqual(len(said), 1, text)
                self.assertTrue(said[0][1].startswith(folder), text)
                with open(said[0][1] + "/metrics.jsonl", encoding="utf-8") as file:
                    self.assertIn(len(file.read().splitlines()), (int(said[0][0]), int(said[0][0]) + 1))
            finally:
                job.close()

    def test_by_ctrl_c(self):
        self.interrupt(lambda job: job.process.send_signal(signal.SIGINT))

    def test_by_a_batch_system(self):
        self.interrupt(lambda job: job.process.terminate())

    def test_rank_0_alone(self):
        self.interrupt(lambda job: os.kill(job.pids[0], signal.SIGTERM))


class Fault(unittest.TestCase):
    """What a signal ends is told in one line, with rank, module and microbatch."""

    def line(self, text):
        found = re.findall(r"^smp: .*", text, re.MULTILINE)
        self.assertEqual(len(found), 1, text)
        return found[0]

    def test_of_a_module(self):
        status, text = run((2, "fault", 0, 1))
        self.assertNotEqual(status, 0)
        self.assertRegex(self.line(text), r"smp: rank 1, module 1 \(forward\), microbatch 1: ended by "
                                          r"a segmentation fault \(SIGSEGV\) at address 0x10")

    def test_of_a_frame_that_is_larger_than_a_stack(self):
        status, text = run((2, "frame", 0, 1))
        self.assertNotEqual(status, 0)
        self.assertRegex(self.line(text), r"smp: rank 1, module 1 \(forward\), microbatch 1: "
                                          r"the fiber's stack overflowed; raise fiber_stack_bytes")

    def test_of_memory_that_a_module_does_not_get(self):
        status, text = run((2, "memory", 0, 1))
        self.assertEqual(status, 1)
        self.assertNotIn("frame #", text)
        self.assertRegex(self.line(text), r"smp: rank 1, module 1 \(forward\), microbatch 1: .*allocate memory")

    def test_of_memory_that_a_program_does_not_get(self):
        status, text = run((2, "hoard", 0, 1))
        self.assertEqual(status, 1)
        self.assertNotIn("frame #", text)
        self.assertRegex(self.line(text), r"smp: rank 1: .*allocate memory")

    def test_sent_from_outside(self):
        for rank in range(2):
            job = RunningJob(2, "train", 1_000_000)
            try:
                self.assertTrue(job.wait_for_step(5), "".join(job.output))
                os.kill(job.pids[rank], signal.SIGSEGV)
                status, seconds = job.wait()
                job.reader.join()
                self.assertNotEqual(status, 0)
                self.assertLess(seconds, SECONDS_TO_END)
                self.assertRegex(self.line("".join(job.output)),
                                 rf"smp: rank {rank}, .*module [0-9<>a-z._]+ \((for|back)ward\), microbatch \d:"
                                 rf" ended by signal 11, which process {os.getpid()} sent")
            finally:
                job.close()

    def test_of_an_exception_that_cannot_unwind(self):
        status, text = run((2, "noexcept", 0, 0))
        self.assertEqual(status, 1)
        self.assertRegex(self.line(text), r"smp: rank 0, module (<body>|4) \(forward\), microbatch 0: an exception "
                                          r"could not leave a noexcept function or a destructor")

    def test_an_exception_of_a_module_is_told_once(self):
        for rank in range(3):
            status, text = run((3, "module", 0, rank))
            self.assertNotEqual(status, 0)
            module = rank if rank > 0 else "<body>"
            self.assertIn(f"smp: rank {rank}, module {module} (forward), microbatch 1: the mat",
                          self.line(text))


class LeavingRank(unittest.TestCase):
    """A rank that stops early is named by the others, and the job fails."""

    def ended(self, *arguments):
        status, text = run((4, *arguments))
        self.assertNotEqual(status, 0)
        said = re.findall(r"^smp: (.*)", text, re.MULTILINE)
        self.assertEqual(len(said), 1, text)
        return said[0]

    def test_that_runs_fewer_steps(self):
        text = self.ended("leave", 3, 2)
        self.assertIn("rank 0: step 4 cannot ", text)
        self.assertIn("rank 2 left after step 3", text)
        self.assertIn("same number of steps", text)

    def test_zero_that_runs_fewer_steps(self):
        self.assertIn("rank 1: step 4 cannot ", text := self.ended("leave", 3, 0))
        self.assertIn("rank 0 left after step 3", text)

    def test_that_throws_between_steps(self):
        self.assertEqual("rank 1: the disk is full", self.ended("throw", 3, 1))

    def test_after_all_steps_is_no_error(self):
        status, text = run((4, "train", 3))
        self.assertEqual(status, 0, text)
        self.assertIn("step 3", text)


class Stall(unittest.TestCase):
    """A module that keeps the others waiting is named, and the job goes on."""

    def test_names_rank_module_and_microbatch(self):
        status, text = run((2, "sleep", 3, 1, "--smp.stall_seconds", 1))
        self.assertEqual(status, 0, text)
        self.assertRegex(text, r"rank 0: nothing happened for \d+ s in step 2")
        self.assertRegex(text, r"waits for forward of 1 on rank 1, microbatch 1")
        self.assertIn("step 3", text)

    def test_names_collective_and_group_of_tensor_parallel_ranks(self):
        status, text = run((2, "sleep", 3, 1, "--smp.stall_seconds", 1, "--smp.tensor_parallel_degree", 2,
                            "--smp.pipeline_parallel_degree", 1))
        self.assertEqual(status, 0, text)
        self.assertRegex(text, r"rank 0: nothing happened for \d+ s in step 2")
        self.assertRegex(text, r"module '\d.linear', microbatch 1: smp::\w+_for_tp on rank 1 of TP_GROUP {0, 1}, for")
        self.assertIn("step 3", text)

    def test_ends_the_job_if_it_lasts(self):
        status, text = run((2, "sleep", 5, 1, "--smp.stall_seconds", 1, "--smp.abort_seconds", 2))
        self.assertNotEqual(status, 0)
        self.assertRegex(text, r"waits for forward of 1 on rank 1, microbatch 1")


class OddCollectives(unittest.TestCase):
    """A call that all ranks must make, and that some do not: both are named."""

    LIMITS = ("--smp.stall_seconds", 1, "--smp.abort_seconds", 4)

    def told(self, *arguments, ranks=2, settings=()):
        status, text = run((ranks, *arguments, *self.LIMITS, *settings))
        self.assertNotEqual(status, 0, text)
        return text

    def test_a_stage_that_saves_alone(self):
        text = self.told("save", 2, 0)
        self.assertRegex(text, r"save_safetensors of PP_GROUP {0, 1} waits for rank 1, but rank 1 left after step 2; "
                               r"every rank of the group must call smp::save_safetensors")

    def test_a_stage_that_saves_while_the_others_go_on(self):
        text = self.told("save_early", 2, 0)
        self.assertRegex(text, r"waits for save_safetensors on rank 1 of PP_GROUP {0, 1} "
                               r"\(every rank of it must call smp::save_safetensors\), for")
        self.assertRegex(text, r"rank 1[ ,:]")

    def test_the_second_replica_alone(self):
        one_stage = ("--smp.pipeline_parallel_degree", 1)
        text = self.told("save", 2, 1, settings=one_stage)
        self.assertRegex(text, r"rank 1: the file of the first replica of WORLD {0, 1} waits for rank 0, but rank 0 "
                               r"left after step 2; every rank of the group must call smp::save_safetensors")

    def test_the_first_replica_alone_may(self):
        status, text = run((2, "save", 2, 0, "--smp.pipeline_parallel_degree", 1, *self.LIMITS))
        self.assertEqual(status, 0, text)

    def test_calls_of_different_groups(self):
        text = self.told("barriers", 2, 0, ranks=4, settings=("--smp.pipeline_parallel_degree", 2))
        self.assertRegex(text, r"rank \d: smp::\w+ of \w+ {[0-3, ]+} waits for rank \d, but rank \d calls smp::\w+, "
                               r"which waits for this rank; all ranks of a group must make the same calls")
        self.assertNotIn("nothing happened", text)


class Stuck(unittest.TestCase):
    """A rank whose thread does not come back is named by a watchdog, which ends the job in time."""

    LIMITS = ("--smp.stall_seconds", 1, "--smp.abort_seconds", 3)

    def ended(self, *arguments, limits=LIMITS):
        start = time.monotonic()
        status, text = run((2, *arguments, *limits))
        self.assertNotEqual(status, 0, text)
        self.assertLess(time.monotonic() - start, 25, text)
        self.assertNotIn("step 3", text)
        return text

    def test_in_a_mutex_held_across_a_remote_call(self):
        text = self.ended("mutex", 0, 0)
        self.assertRegex(text, r"rank 0, module 4 \(forward\), microbatch \d: has kept its thread")
        self.assertIn("mutex", text)

    def test_in_a_barrier_of_its_own(self):
        text = self.ended("barrier", 0, 1)
        self.assertRegex(text, r"rank 1, module 1 \(forward\), microbatch 1: has kept its thread")
        self.assertIn("MPI_Barrier", text)
        self.assertRegex(text, r"rank 1 does not answer")

    def test_in_a_loop_without_end(self):
        text = self.ended("loop", 0, 1)
        self.assertRegex(text, r"rank 1, module 1 \(forward\), microbatch 1: has kept its thread")

    def test_in_the_trial_run(self):
        text = self.ended("trial", 0, 0)
        self.assertRegex(text, r"has kept its thread .*MPI_Barrier")

    def test_in_a_program_that_catches_everything(self):
        text = self.ended("catch", 1000, 1)
        self.assertRegex(text, r"ending the job \(abort_seconds\)")

    def test_outside_of_steps(self):
        text = self.ended("absent", 1000, 1)
        self.assertRegex(text, r"rank 1 does not answer: it computes in a module, is outside of")

    def test_but_a_long_operator_only_reports(self):
        status, text = run((2, "sleep", 3, 1, "--smp.stall_seconds", 1))
        self.assertEqual(status, 0, text)
        self.assertRegex(text, r"rank 1, module 1 \(forward\), microbatch 1: has kept its thread")
        self.assertIn("step 3", text)

    def test_that_exits_inside_a_module(self):
        text = self.ended("exit", 0, 1)
        self.assertRegex(text, r"rank 1, module 1 \(forward\), microbatch 1: the program called exit\(\)")


class Warnings(unittest.TestCase):
    """What all ranks warn about is printed once, with the ranks that it is from."""

    def lines_with(self, what, *ranks_and_arguments):
        status, text = run(*ranks_and_arguments)
        self.assertEqual(status, 0, text)
        self.assertIn("step 3", text)
        return [line for line in text.splitlines() if what in line]

    def said_by_all(self, what, *arguments):
        for ranks in 2, 4:
            lines = self.lines_with(what, (ranks, *arguments))
            self.assertEqual(len(lines), 1, lines)
            self.assertIn(f"[smp W rank 0] ranks 0-{ranks - 1}: ", lines[0])

    def test_of_settings(self):
        self.said_by_all("active_microbatches", "train", 3, "--smp.active_microbatches", 7)

    def test_of_numbers_of_threads(self):
        self.assertEqual(self.lines_with("numbers of threads", (2, "train", 3)), [])
        two = ("env", "OMP_NUM_THREADS=2", JOB, "train", "3")
        line = [*command((1, "train", 3)), ":", "-n", "2", *two, ":", "-n", "1", JOB, "train", "3"]
        done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=SECONDS_TO_START)
        self.assertEqual(done.returncode, 0, done.stdout)
        lines = [line for line in done.stdout.splitlines() if "numbers of threads" in line]
        self.assertEqual(len(lines), 1, done.stdout)
        self.assertIn("[smp W rank 0] ranks compute with different numbers of threads: 1 on ranks 0, 3, 2 on "
                      "ranks 1-2; ", lines[0])

    def test_before_models_are_placed(self):
        self.said_by_all("1 parameters were given more than once", "doubles", 3)

    def test_of_a_run_log(self):
        self.said_by_all("rank-*.ring: ", "full", 3)

    def test_of_one_rank_names_it(self):
        lines = self.lines_with("given more than once", (1, "train", 3), (1, "doubles", 3), (2, "train", 3))
        self.assertEqual(len(lines), 1, lines)
        self.assertIn("[smp W rank 0] rank 1: ", lines[0])


class Refusal(unittest.TestCase):
    """What is wrong from the start is refused by name, at once, and said by one rank."""

    def refused(self, *ranks_and_arguments):
        status, text = run(*ranks_and_arguments)
        self.assertNotEqual(status, 0)
        self.assertNotIn("step 1", text)
        self.assertNotIn("frame #", text)
        self.assertEqual(len(re.findall(r"^smp: ", text, re.MULTILINE)), 1, text)
        return text

    def test_of_an_unknown_key_that_main_reports(self):
        text = self.refused((4, "report", 3, "--smp.microbatchs", 2))
        self.assertIn("microbatchs", text)

    def test_of_a_flag_before_there_are_ranks(self):
        """Whoever is late: the launcher ends all of them when the first one has ended."""
        for late in range(4):
            text = self.refused((4, "flags", 500, late))
            self.assertIn("smp: unknown argument '--stepz'\n", text)

    def test_of_a_flag_of_one_rank_before_it_is_one(self):
        for ranks in ((1, "flags", 0, 0), (3, "train", 3)), ((3, "train", 3), (1, "flags", 0, 0)):
            self.assertIn("smp: unknown argument '--stepz'\n", self.refused(*ranks))

    def test_of_a_wrong_flag_on_a_busy_machine(self):
        starts = int(os.environ.get("SMP_STARTS", "6"))
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
        try:
            for start in range(starts):
                action = ("train", "report")[start % 2]
                self.assertIn("microbatchs", self.refused((4, action, 3, "--smp.microbatchs", 2)))
                self.assertIn("--stepz", self.refused((4, "flags", 0, 0)))
                text = self.refused((3, action, 3), (1, action, 3, "--smp.microbatchs", 2))
                self.assertIn("microbatchs", text)
        finally:
            for loop in busy:
                loop.kill()
                loop.wait()

    def test_that_one_rank_says_late(self):
        self.assertIn("microbatchs", self.refused((4, "late", 3, "--smp.microbatchs", 2)))

    def test_of_a_flag_of_one_rank(self):
        text = self.refused((1, "train", 3), (1, "train", 3, "--smp.microbatchs", 2))
        self.assertIn("microbatchs", text)

    def test_of_settings_that_differ(self):
        text = self.refused((1, "train", 3, "--smp.microbatches", 2),
                            (1, "train", 3, "--smp.microbatches", 4))
        self.assertIn("microbatches: 2 (flag --smp.microbatches) on rank 0, "
                      "4 (flag --smp.microbatches) on rank 1;", text)

    def test_of_an_unknown_key(self):
        text = self.refused((2, "train", 3, "--smp.microbatchs", 2))
        self.assertIn("microbatchs", text)
        self.assertRegex(text, r'mean.*microbatches|microbatches.*\?')

    def test_of_a_wrong_value(self):
        self.assertIn("microbatches", self.refused((2, "train", 3, "--smp.microbatches", "many")))

    def test_of_degrees_that_do_not_fit(self):
        text = self.refused((2, "train", 3, "--smp.pipeline_parallel_degree", 3))
        self.assertIn("pipeline_parallel_degree", text)

    def test_of_more_ranks_than_modules(self):
        text = self.refused((10, "plan", os.devnull))
        self.assertRegex(text, r"10")
        self.assertRegex(text, r"stage|rank")

    def test_of_plans_that_do_not_fit(self):
        with tempfile.TemporaryDirectory() as folder:
            plan = os.path.join(folder, "plan.json")
            other = os.path.join(folder, "other.json")
            status, text = run((2, "plan", plan))
            self.assertEqual(status, 0, text)
            with open(plan, encoding="utf-8") as file:
                content = file.read()
            with open(other, "w", encoding="utf-8") as file:
                file.write(content.replace('"3.linear"', '"3.conv"'))
            self.assertIn("3.conv", self.refused((2, "train", 3, "--smp.plan_file", other)))
            self.assertIn(plan, self.refused((4, "train", 3, "--smp.plan_file", plan)))
            missing = os.path.join(folder, "missing.json")
            self.assertIn(missing, self.refused((2, "train", 3, "--smp.plan_file", missing)))


if __name__ == "__main__":
    split = sys.argv.index("--")
    JOB, MPIRUN = sys.argv[1], sys.argv[2:split]
    unittest.main(argv=[sys.argv[0], *sys.argv[split + 1:]], verbosity=2)
