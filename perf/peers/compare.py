"""smp beside what others would take: `./smp perf peers` runs this, with a Python of its own."""

import argparse
import importlib.metadata
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from contest import ONE_PROCESS, Contest, Entry, Measured, ideal_share
from models import Setting
from ranks import PeerFailed, Ranks, our_ranks, torch_ranks
from report import LEAST_GFLOPS, Rows, machine, matrix_multiplication_gflops, median, write

ROOT = Path(__file__).parents[2]
BRIEF = os.environ.get("SMP_PERF_BRIEF") == "1"
OURS = "smp"  # planned by default
REFERENCE = Entry(ONE_PROCESS, "plain", alone=True)
LIBTORCH = Entry("one_process_libtorch", "libtorch", alone=True)
SCHEDULES = ["gpipe", "1f1b", "interleaved_1f1b", "interleaved_zero_bubble", "zbv_zero_bubble"]
PIPELINING = [Entry(name, "torch") for name in SCHEDULES]
OTHERS = [Entry("rpc", "rpc"), Entry("deepspeed", "deepspeed")]
SMP, SMP_BY_HAND = Entry(OURS, OURS), Entry("smp_by_hand", "smp_by_hand")
DDP, SMP_REPLICAS = Entry("ddp", "ddp"), Entry("smp_replicas", "smp_replicas")
AT_END = Entry("smp_replicas_at_end", "smp_replicas_at_end")  # of the backward, instead of meanwhile
SMP_TP, TORCH_TP = Entry("smp_tp", "smp_tp"), Entry("tensor_parallel", "torch")
SMP_SP, TORCH_SP = Entry("smp_sp", "smp_sp"), Entry("sequence_parallel", "torch")
KEPT = "_kept_heap"  # with what LibTorch frees kept by the C library, so that pages are cleared only once
KEPT_HEAP = [Entry(entry.name + KEPT, entry.family + KEPT, entry.alone) for entry in (LIBTORCH, SMP, SMP_BY_HAND)]
# 32 MiB is the largest that glibc accepts; tensors of these models are smaller.
KEEP_HEAP = {"GLIBC_TUNABLES": f"glibc.malloc.mmap_threshold={32 << 20}:glibc.malloc.trim_threshold={1 << 40}"}
OUR_VARIANTS = {
    OURS: "planned",
    "smp_by_hand": "by_hand",
    "smp_replicas": "replicas",
    "smp_tp": "sliced",
    "smp_sp": "sliced_along_sequence",
    "smp_replicas_at_end": "replicas_at_end",
    "one_process_libtorch": "one_process",
}
BRIEF_NAMES = {ONE_PROCESS, "1f1b", "rpc", OURS}


@dataclass(frozen=True)
class Part:
    setting: Setting
    entries: list[Entry]
    rounds: int
    seconds: float  # from the start of the processes on; then no round begins that need not


def training(workload: str, ranks: int, microbatches: int, ours: list[Entry], seconds: float) -> Part:
    entries = [REFERENCE, LIBTORCH, *ours, *PIPELINING, *OTHERS]
    if BRIEF:
        setting = Setting(workload, ranks, 4, rows=8, length=16, tiny=True)
        return Part(setting, [entry for entry in entries if entry.name in BRIEF_NAMES], 1, 1)
    return Part(Setting(workload, ranks, microbatches), entries, 7, seconds)


def replicas(workload: str, ranks: int, seconds: float) -> Part:
    setting = Setting(workload, ranks, 4, rows=8, length=16, tiny=True) if BRIEF else Setting(workload, ranks, 8)
    return Part(setting, [REFERENCE, DDP, SMP_REPLICAS, AT_END], 1 if BRIEF else 25, 1 if BRIEF else seconds)


def llama(ours: Entry, theirs: Entry, microbatches: int) -> Part:
    setting = Setting("llama", 2, 4, rows=8, length=16, tiny=True) if BRIEF else Setting("llama", 2, microbatches, length=128)
    return Part(setting, [REFERENCE, ours, theirs], 1 if BRIEF else 15, 1 if BRIEF else 60)


PARTS = {
    "gpt.p2": training("gpt", 2, 8, [SMP, SMP_BY_HAND, *KEPT_HEAP], 120),
    "gpt.p4": training("gpt", 4, 16, [SMP, SMP_BY_HAND], 120),
    "t5.p2": training("t5", 2, 8, [SMP, SMP_BY_HAND, *KEPT_HEAP], 120),
    "t5.p4": training("t5", 4, 16, [SMP], 110),
    "gpt.r2": replicas("gpt", 2, 120),
    "tp2": llama(SMP_TP, TORCH_TP, 4),
    "tp2_sp": llama(SMP_SP, TORCH_SP, 4),
    "pp2": llama(SMP, PIPELINING[1], 8),
    "dp2": llama(SMP_REPLICAS, DDP, 8),
    "sleep.p4": Part(Setting("sleep", 4, 16), [SMP, *PIPELINING, *OTHERS], 5, 90),
}
CALL_ROUNDS, CALLS = (1, 20) if BRIEF else (5, 200)
REPLICAS = ["gpt.r2"]
LLAMA = {  # rows by part
    "tp2": ["tp2_over_torch"],
    "tp2_sp": ["tp2_sp_over_torch", "step.over_torch.tp2_sp"],
    "pp2": ["pp2_over_torch_1f1b", "step.over_torch.pp2"],
    "dp2": ["step.over_torch.dp2"],
}
LAYERS = "layers"  # our own beside what they are made of: perf/llama.cpp
TEXT = ["opening", "loader", "generation", "files"]  # what is beside the steps: parts of perf/text.cpp
ALL_PARTS = {
    "peers": [*(part for part in PARTS if part not in [*REPLICAS, *LLAMA]), "call"],
    "dp": REPLICAS,
    "llama": [*LLAMA, LAYERS, *TEXT],
}
BRIEF_PARTS = {"peers": ["gpt.p2", "t5.p2", "call"], "dp": REPLICAS, "llama": ["tp2_sp", LAYERS]}


class Comparison:
    def __init__(self, programs: Path, mpirun: list[str]) -> None:
        self.programs, self.mpirun = programs, mpirun
        self.rows = Rows()
        self.failed = False

    def start(self, entry: Entry, setting: Setting) -> Ranks:
        name = entry.name.removesuffix(KEPT)
        if name in OUR_VARIANTS:
            program = self.programs / "perf"
            if entry in (SMP_REPLICAS, AT_END):  # which share the microbatches of a step
                setting = replace(setting, microbatches=setting.microbatches // setting.ranks)
            environment = KEEP_HEAP if entry.name.endswith(KEPT) else {}
            return our_ranks(self.mpirun, program, OUR_VARIANTS[name], setting, environment)
        return torch_ranks(entry.family, setting)

    def run(self, name: str) -> None:
        try:
            if name == "call":
                return self.run_calls()
            if name == LAYERS:
                return self.run_own("llama", [*self.mpirun, "-n", "2", str(self.programs / "perf"), "llama"])
            if name in TEXT:
                return self.run_own("text", [str(self.programs / "perf"), "text", "--part", name])
            part = PARTS[name]
            measured = Contest(part.setting, part.entries, self.start, part.seconds).run(part.rounds)
            self.add_failures(name, measured)
            add = self.add_sleep if part.setting.workload == "sleep" else self.add_training
            add = self.add_replicas if name in REPLICAS else add
            add = self.add_llama if name in LLAMA else add
            add(name, part.setting, measured)
        except Exception as error:  # the other parts may still be measured
            self.add_failure(name, f"{type(error).__name__}: {error}")

    def add_failure(self, name: str, text: str) -> None:
        self.failed = True
        self.rows.add(f"{name}.failed", 1, "1", text)

    def add_failures(self, part: str, measured: Measured) -> None:
        for name, text in measured.failures.items():
            self.add_failure(f"{part}.{name}", text)

    def add_training(self, part: str, setting: Setting, measured: Measured) -> None:
        alone = measured.milliseconds[ONE_PROCESS]
        ideal = ideal_share(setting, os.cpu_count() or 1)
        rows = setting.rows // setting.microbatches
        about = f"{setting.microbatches} microbatches of {rows} x {setting.length} tokens"
        for name, samples in measured.milliseconds.items():
            self.rows.add_samples(f"{part}.{name}.step_ms", samples, "ms", f"{len(samples)} rounds; {about}")
            if name != ONE_PROCESS and name in measured.differences:
                self.rows.add(f"{part}.{name}.loss_difference", measured.differences[name], "1")
            if faults := measured.of_kind(name, "page_faults"):
                self.rows.add(f"{part}.{name}.page_faults_per_step", median(faults), "1", "of all ranks")
            if not name.startswith(ONE_PROCESS):
                shares = [ideal * one / own for one, own in zip(alone, samples)]
                note = f"ideal: {ideal:.3f} of the step of one process of torch"
                self.rows.add_samples(f"{part}.{name}.share_of_ideal", shares, "1", note)
            kept = KEPT if name.endswith(KEPT) else ""
            libtorch = measured.milliseconds.get(LIBTORCH.name + kept)  # not in brief runs
            if name.startswith(OURS) and libtorch:
                shares = [ideal * one / own for one, own in zip(libtorch, samples)]
                note = "of the same loop in C++" + (", which keeps its heap as well" if kept else "")
                self.rows.add_samples(f"{part}.{name}.share_of_ideal_of_libtorch", shares, "1", note)
            if busiest := measured.of_kind(name, "busiest_share"):
                note = f"of the processor time of all ranks; equal stages: {1 / setting.ranks:.3f}"
                self.rows.add(f"{part}.{name}.busiest_rank_share", median(busiest), "1", note)
            self.add_over_ours(part, name, measured)

    def add_over_ours(self, part: str, name: str, measured: Measured) -> None:
        ours = measured.milliseconds.get(OURS, [])
        ratios = [other / own for other, own in zip(measured.milliseconds[name], ours)]
        known = [ratio for ratio in ratios if not math.isnan(ratio)]
        if known and name != OURS:
            self.rows.add(f"{part}.{name}.step_over_smp", median(known), "1", "median of ratios within a round")

    def add_replicas(self, part: str, setting: Setting, measured: Measured) -> None:
        for name, samples in measured.milliseconds.items():
            self.rows.add_samples(f"{part}.{name}.step_ms", samples, "ms", f"{len(samples)} rounds")
            if name in measured.differences and name != ONE_PROCESS:
                self.rows.add(f"{part}.{name}.loss_difference", measured.differences[name], "1")
        own, theirs, at_end = (measured.milliseconds[entry.name] for entry in (SMP_REPLICAS, DDP, AT_END))
        ratios = [ours / other for ours, other in zip(own, theirs)]
        note = f"{part}: {setting.ranks} replicas of a GPT, {setting.microbatches // setting.ranks} microbatches each, gloo"
        self.rows.add_samples("step_over_ddp", ratios, "1", note)
        ratios = [during / after for during, after in zip(own, at_end)]
        self.rows.add_samples("overlapped_over_at_end", ratios, "1", "gradients averaged during the backward, or after it")

    def add_llama(self, part: str, setting: Setting, measured: Measured) -> None:
        for name, samples in measured.milliseconds.items():
            rows = setting.rows // setting.microbatches
            note = f"{len(samples)} rounds; {setting.microbatches} microbatches of {rows} x {setting.length} tokens"
            self.rows.add_samples(f"{part}.{name}.step_ms", samples, "ms", note)
            if name in measured.differences and name != ONE_PROCESS:
                self.rows.add(f"{part}.{name}.loss_difference", measured.differences[name], "1")
        _, ours, theirs = (measured.milliseconds[entry.name] for entry in PARTS[part].entries)
        ratios = [other / own for other, own in zip(theirs, ours)]
        for metric in LLAMA[part]:
            self.rows.add_samples(metric, ratios, "1", "tokens per second of ours over torch's, within a round")

    def add_sleep(self, part: str, setting: Setting, measured: Measured) -> None:
        cell = setting.forward_ms + setting.backward_ms
        ideal = (setting.microbatches + setting.ranks - 1) * cell
        note = f"F = {setting.forward_ms:.0f} ms, B = {setting.backward_ms:.0f} ms; ideal {ideal:.0f} ms"
        for name, samples in measured.milliseconds.items():
            ratios = [own / ideal for own in samples]
            self.rows.add_samples(f"{part}.{name}.step_over_ideal", ratios, "1", note)
            self.add_over_ours(part, name, measured)

    # ---- our layers, and text ----

    def run_own(self, name: str, command: list[str]) -> None:
        with TemporaryDirectory() as folder:
            environment = os.environ | {"SMP_PERF_RESULTS": folder, "SMP_PEERS_PYTHON": sys.executable}
            environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
            subprocess.run(command, env=environment, cwd=ROOT, timeout=300, check=True)
            if not BRIEF:
                self.rows.rows += json.loads((Path(folder) / f"{name}.json").read_text())["rows"]

    # ---- one call ----

    def run_calls(self) -> None:
        theirs: dict[str, list[float]] = {"forward": [], "forward_backward": []}
        ours: dict[str, list[float]] = {"forward": [], "forward_backward": []}
        ranks = torch_ranks("rpc", Setting("sleep", 2, 8))
        try:
            for _ in range(CALL_ROUNDS):
                answer = ranks.turn("call", CALLS, 60)
                own = self.our_calls()
                for kind in theirs:
                    theirs[kind].append(median(answer[kind]))
                    ours[kind].append(own[kind])
        except (PeerFailed, subprocess.SubprocessError) as error:  # earlier rounds count
            self.add_failure("call", f"after {len(ours['forward'])} rounds: {str(error)[:300]}")
        finally:
            ranks.stop()
        self.add_calls(theirs, ours)

    def add_calls(self, theirs: dict[str, list[float]], ours: dict[str, list[float]]) -> None:
        for kind in theirs:
            if not ours[kind]:
                continue
            note = f"y = x * w with 4 floats; {len(ours[kind])} rounds, each its p50"
            self.rows.add_samples(f"call.torch_rpc.{kind}.p50_us", theirs[kind], "us", note)
            self.rows.add_samples(f"call.smp.{kind}.p50_us", ours[kind], "us", "perf remote_call")
            ratio = median([other / own for other, own in zip(theirs[kind], ours[kind])])
            self.rows.add(f"call.torch_rpc.{kind}.over_smp", ratio, "1", "median of ratios within a round")

    def our_calls(self) -> dict[str, float]:
        with TemporaryDirectory() as folder:
            command = [*self.mpirun, "-n", "2", str(self.programs / "perf"), "remote_call"]
            output = subprocess.run(
                command, env=os.environ | {"SMP_PERF_RESULTS": folder}, timeout=60, check=True,
                stdout=subprocess.PIPE, text=True,
            ).stdout  # fmt: skip
        rows = dict(re.findall(r"^(\S+)\.p50_us +(\S+) us", output, re.M))
        return {kind: float(rows[kind]) for kind in ("forward", "forward_backward")}


def versions() -> dict[str, str]:
    def said(*command: str) -> str:
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[0]

    project = (ROOT / "CMakeLists.txt").read_text()
    found = {
        "LibTorch": torch.__version__,
        "Python": sys.version.split()[0],
        "MPI": said("mpirun", "--version"),
        "compiler": said("g++", "-dumpfullversion"),
        "smp": re.findall(r"project\(smp\s[^)]*?VERSION ([0-9.]+)", project)[0],
    }
    try:
        found["DeepSpeed"] = importlib.metadata.version("deepspeed")
    except importlib.metadata.PackageNotFoundError:
        found["DeepSpeed"] = "not installed"
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="smp perf peers", description=__doc__)
    parser.add_argument("--program", choices=ALL_PARTS, default="peers", help=argparse.SUPPRESS)
    parser.add_argument("--parts", help=f"some of {','.join(ALL_PARTS['peers'])}; the other rows of the result file are kept")
    parser.add_argument("--build", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--mpirun", required=True, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    usual = (BRIEF_PARTS if BRIEF else ALL_PARTS)[arguments.program]
    arguments.parts = arguments.parts.split(",") if arguments.parts else usual
    unknown = set(arguments.parts) - set(ALL_PARTS[arguments.program])
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    return arguments


def main() -> int:
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # and so ends the ranks
    load = os.getloadavg()
    if not BRIEF and matrix_multiplication_gflops() < LEAST_GFLOPS:
        sys.exit(f"this torch multiplies matrices with less than {LEAST_GFLOPS} GFLOP/s: numbers would mean nothing")
    comparison = Comparison(arguments.build / "perf", arguments.mpirun.split())
    done: list[str] = []
    for part in arguments.parts:
        start = time.monotonic()
        comparison.run(part)
        print(f"{part}: {time.monotonic() - start:.0f} s", flush=True)
        done.append(part)
        if not BRIEF:  # now, for the case that somebody loses patience
            write(ROOT / f"perf/results/{arguments.program}.json", comparison.rows, done, machine(load), versions())
    print(comparison.rows.table())
    if BRIEF:
        print("a peer failed" if comparison.failed else "a brief run, not written: its numbers mean nothing")
        return int(comparison.failed)
    print(f"written to perf/results/{arguments.program}.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
