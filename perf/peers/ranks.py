"""Starts the ranks of some peers, ours or torch's, and lets them take turns; between turns they compute nothing."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from tempfile import mkdtemp

from models import Setting

FOLDER = Path(__file__).parent


class PeerFailed(Exception):
    pass


def free_ports() -> int:
    """The first of two free ports."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            try:
                second.bind(("127.0.0.1", first.getsockname()[1] + 1))
            except (OSError, OverflowError):
                continue
            return first.getsockname()[1]


def why(log: str) -> str:
    """The line of a log that says most: the first error, else the last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line.split(":")[0] or line.startswith("smp: ")]
    return (errors or lines[-1:] or ["no message"])[0][:300]


class Ranks:
    """Processes that hold the same models' parts; each has a pipe for commands, rank 0 one for answers.

    If they are `restless`, they are stopped between turns: idle threads of torch (of TensorPipe, for one) look for
    messages without a pause, which takes half a core and more from whoever's turn it is. Ranks of ours sleep in their
    pipes. If this program is killed, the kernel wakes and ends what is stopped, as each has a process group of its own.
    """

    def __init__(self, count: int, restless: bool = False) -> None:
        self.count = count
        self.restless = restless
        self.folder = Path(mkdtemp(prefix="smp-peers-"))
        self.processes: list[subprocess.Popen[bytes]] = []
        self.commands = [self.pipe(f"turn.{rank}") for rank in range(count)]
        self.answers = self.pipe("answers")
        self.unread = b""

    def pipe(self, name: str) -> int:
        os.mkfifo(self.folder / name)
        return os.open(self.folder / name, os.O_RDWR)  # so that neither side waits for the other to open it

    def start(self, command: list[str], environment: dict[str, str]) -> None:
        log = open(self.folder / f"log.{len(self.processes)}", "wb")
        self.processes.append(
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0,
                env=os.environ | environment,
            )
        )  # fmt: skip

    def turn(self, variant: str, steps: int, seconds: float) -> dict[str, list[float]]:
        self.send_signal(signal.SIGCONT)
        try:
            return self.take_turn(variant, steps, seconds)
        finally:
            self.send_signal(signal.SIGSTOP)

    def send_signal(self, number: int) -> None:
        if not self.restless:
            return
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, number)

    def take_turn(self, variant: str, steps: int, seconds: float) -> dict[str, list[float]]:
        for command in self.commands:
            os.write(command, f"{variant} {steps}\n".encode())
        end = time.monotonic() + seconds
        while b"\n" not in self.unread:
            if time.monotonic() > end:
                raise PeerFailed(f"no answer in {seconds:.0f} s; {self.log()}")
            if any(process.poll() is not None for process in self.processes):
                time.sleep(0.5)  # the others may have something to say about it
                raise PeerFailed(self.log())
            if select.select([self.answers], [], [], 0.2)[0]:
                self.unread += os.read(self.answers, 1 << 20)
        line, _, self.unread = self.unread.partition(b"\n")
        return json.loads(line)

    def log(self) -> str:
        """Of the rank that ended first, if one did."""
        order = sorted(range(len(self.processes)), key=lambda i: self.processes[i].poll() is None)
        texts = [(self.folder / f"log.{i}").read_text(errors="replace") for i in order]
        return why(next((text for text in texts if "Error" in text), "\n".join(texts)))

    def stop(self) -> None:
        self.send_signal(signal.SIGCONT)
        for process in self.processes:
            if process.poll() is None:
                process.terminate()  # mpirun ends its ranks
        for process in self.processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for descriptor in [*self.commands, self.answers]:
            os.close(descriptor)
        for file in self.folder.iterdir():
            file.unlink()
        self.folder.rmdir()


def torch_ranks(family: str, setting: Setting) -> Ranks:
    ranks = Ranks(setting.ranks, restless=True)
    port = free_ports()
    environment = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "PYTHONPATH": str(FOLDER)}
    for rank in range(setting.ranks):
        arguments = ["--turns", str(ranks.folder), "--family", family, "--setting", json.dumps(asdict(setting))]
        arguments += ["--rank", str(rank), "--port", str(port)]
        ranks.start([sys.executable, str(FOLDER / "worker.py"), *arguments], environment)
    return ranks


def our_ranks(mpirun: list[str], program: Path, variant: str, setting: Setting, environment: dict[str, str]) -> Ranks:
    ranks = Ranks(setting.ranks)
    options = ["-n", str(setting.ranks)]
    if setting.ranks > (os.cpu_count() or 1):
        options += ["--mca", "mpi_yield_when_idle", "1"]
    arguments = ["--turns", str(ranks.folder), "--workload", setting.workload, "--variant", variant]
    for name in ("ranks", "microbatches", "rows", "length", "learning_rate", "forward_ms", "backward_ms"):
        arguments += [f"--{name.replace('_', '-')}", str(getattr(setting, name))]
    arguments += ["--tiny"] if setting.tiny else []
    environment = environment | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    ranks.start([*mpirun, *options, str(program), "peers", *arguments], environment)
    return ranks
