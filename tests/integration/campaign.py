#!/usr/bin/env python3
"""Ends of jobs by the hundred, at random moments: what jobs_test.py proves of a few. Run by hand.

    campaign.py JOB MPIRUN... -- kills|stops|starts COUNT [SEED]

kills   SIGKILL of a random rank: the job ends in time, nothing of it is left, the next start works
stops   SIGSTOP of a random rank: that one is named, and no other, once in the report and once at the end
starts  a wrong flag, on all ranks or on one, while two loops keep the cores busy: said exactly once

Prints a line for each trial that fails, with all that the job said, then a summary; exits with 1 if any did.
"""

import os
import random
import re
import signal
import subprocess
import sys
import time

import jobs_test
from jobs_test import RunningJob, is_alive, run

RANKS = 4


class Wrong(Exception):
    """What a trial found, and what the job had said."""


def require(holds, what, text=""):
    if not holds:
        raise Wrong(f"{what}\n{text}")


def started(*arguments):
    job = RunningJob(RANKS, *arguments)
    if not job.wait_for_step(3):
        job.close()
        raise Wrong("the job did not start\n" + "".join(job.output))
    return job


def kill(number, dice):
    """Its seconds until the end."""
    rank = dice.randrange(RANKS)
    job = started(dice.choice(("train", "large")), 1_000_000)
    try:
        time.sleep(dice.uniform(0, 1))
        os.kill(job.pids[rank], signal.SIGKILL)
        status, seconds = job.wait()
        job.reader.join()
        text = "".join(job.output)
        require(status != 0, f"rank {rank}: exit status 0", text)
        named = re.findall(r"^smp: rank (\d) is gone", text, re.MULTILINE)
        require(named == [str(rank)], f"rank {rank}: gone are {named}", text)
        require(len(jobs_test.lines_of_ours(text)) == 1, f"rank {rank}: more was said", text)
        require(not any(map(is_alive, job.pids.values())), f"rank {rank}: processes are left", text)
        require(not job.left(), f"rank {rank}: {job.left()} is left", text)
        require(seconds < 10, f"rank {rank}: {seconds:.1f} s until the end", text)
    finally:
        job.close()
    if number % 10 == 0:
        status, text = run((RANKS, "train", 3))
        require(status == 0 and "step 3" in text, "the next start fails", text)
    return seconds


def stop(_, dice):
    rank = dice.randrange(RANKS)
    job = started("train", 1_000_000, "--smp.stall_seconds", 1, "--smp.abort_seconds", 3)
    try:
        time.sleep(dice.uniform(0, 1))
        os.kill(job.pids[rank], signal.SIGSTOP)
        status, seconds = job.wait()
        job.reader.join()
        text = "".join(job.output)
        require(status != 0, f"rank {rank}: exit status 0", text)
        named = re.findall(r"rank (\d) is stopped", text)
        require(set(named) == {str(rank)}, f"rank {rank}: named are {named}", text)
        require(re.search(rf"rank {rank} is stopped.* module \S+ \((for|back)ward\), microbatch \d", text),
                f"rank {rank}: no module", text)
        said = re.findall(r"^smp: ", text, re.MULTILINE)
        require(len(said) == 1, f"rank {rank}: {len(said)} last lines", text)
        require(len(named) <= 2, f"rank {rank}: named {len(named)} times", text)
    finally:
        job.close()
    return seconds


def start(number, dice):
    action = ("train", "report")[number % 2]
    wrong = ("--smp.microbatchs", 2)
    if dice.random() < 0.5:
        blocks = [(RANKS, action, 3, *wrong)]
    else:
        rank = dice.randrange(RANKS)
        blocks = [(count, action, 3, *flags)
                  for count, flags in ((rank, ()), (1, wrong), (RANKS - rank - 1, ())) if count > 0]
    begin = time.monotonic()
    status, text = run(*blocks)
    require(status != 0, "exit status 0", text)
    said = re.findall(r"^smp: .*", text, re.MULTILINE)
    require(len(said) == 1 and "microbatchs" in said[0], f"{len(said)} lines", text)
    return time.monotonic() - begin


def campaign(trial, count, seed):
    dice = random.Random(seed)
    seconds, failures = [], 0
    for number in range(count):
        try:
            seconds.append(trial(number, dice))
        except (Wrong, subprocess.TimeoutExpired) as error:
            failures += 1
            print(f"trial {number}: {error}", flush=True)
        if (number + 1) % 20 == 0:
            print(f"{number + 1} trials, {failures} failed", flush=True)
    seconds.sort()
    if seconds:
        print(f"seconds: median {seconds[len(seconds) // 2]:.2f}, most {seconds[-1]:.2f}")
    print(f"{trial.__name__}: {count - failures} of {count} as they should be (seed {seed})", flush=True)
    return failures


def main():
    split = sys.argv.index("--")
    jobs_test.JOB, jobs_test.MPIRUN = sys.argv[1], sys.argv[2:split]
    which, count, *seed = sys.argv[split + 1:]
    trial = {"kills": kill, "stops": stop, "starts": start}[which]
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"])
             for _ in range(2 if which == "starts" else 0)]
    try:
        return campaign(trial, int(count), int(seed[0]) if seed else 1)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
