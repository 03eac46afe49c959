"""One part of the comparison: some peers train the same model by turns, after their first losses have proved equal."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from models import Setting
from ranks import PeerFailed, Ranks

CHECKED_STEPS = 3
LONGEST_TURN_S = 90
LEAST_ROUNDS = 5
TOLERANCE = 1e-5  # float32 sums of another order differ by some 1e-7, losses without the sums of tied gradients by 1e-4
ONE_PROCESS = "one_process"
# What our programs count in a step: page faults of all ranks, and how much of their processor time the busiest has.
USED = ("page_faults", "busiest_share")


@dataclass(frozen=True)
class Entry:
    """A peer. Those of a family are in the same processes."""

    name: str
    family: str
    alone: bool = False  # one process instead of the setting's ranks

    def setting(self, setting: Setting) -> Setting:
        return replace(setting, ranks=1) if self.alone else setting


@dataclass
class Measured:
    """Of all entries, by name."""

    milliseconds: dict[str, list[float]] = field(default_factory=dict)  # index i is round i; nan: it has failed
    differences: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    used: dict[tuple[str, str], list[float]] = field(default_factory=dict)  # by name and kind (USED), a number a step

    def of_kind(self, name: str, kind: str) -> list[float]:
        return self.used.get((name, kind), [])


Start = Callable[[Entry, Setting], Ranks]


class Contest:
    def __init__(self, setting: Setting, entries: list[Entry], start: Start, seconds: float) -> None:
        self.setting, self.entries, self.start = setting, entries, start
        self.seconds = seconds
        self.running: dict[str, Ranks] = {}
        self.warm: dict[str, set[str]] = {}  # by family: who has trained in the running processes
        self.measured = Measured()

    def run(self, rounds: int) -> Measured:
        """At least `LEAST_ROUNDS`, and more while time lasts; on a machine that is far too busy, fewer."""
        start = time.monotonic()
        try:
            for entry in self.entries:
                self.check(entry)
            for number in range(rounds):
                passed = time.monotonic() - start
                late = passed > (self.seconds if number >= LEAST_ROUNDS else 3 * self.seconds)
                if number > 0 and late:
                    break
                self.round(number)
        finally:
            for ranks in self.running.values():
                ranks.stop()
        return self.measured

    def check(self, entry: Entry) -> None:
        """The first steps; without equal losses a peer is not measured."""
        answer = self.turn(entry, 0)
        if not answer or self.setting.workload == "sleep":
            return
        if entry.name == ONE_PROCESS:
            self.measured.losses = answer["losses"]
        pairs = list(zip(answer["losses"], self.measured.losses))
        difference = max((abs(own / theirs - 1) for own, theirs in pairs), default=float("nan"))
        self.measured.differences[entry.name] = difference
        if not difference < TOLERANCE:
            self.fail(entry, f"losses {answer['losses']} instead of {self.measured.losses}")

    def round(self, number: int) -> None:
        """The reference first; the others in an order that changes, so nobody always follows the same one."""
        first, *others = self.entries
        shift = number % max(1, len(others))
        for entry in [first, *others[shift:], *others[:shift]]:
            answer = self.turn(entry, 1)
            samples = self.measured.milliseconds.setdefault(entry.name, [])
            samples.append(answer["ms"][0] if answer else float("nan"))
            for kind in USED:
                self.measured.used.setdefault((entry.name, kind), []).extend(answer.get(kind, []))

    def turn(self, entry: Entry, steps: int) -> dict[str, list[float]]:
        """Nothing if it has failed. New processes train the first steps again, which are answered if `steps` is 0."""
        if entry.name in self.measured.failures:
            return {}
        try:
            if entry.family not in self.running:
                self.running[entry.family] = self.start(entry, entry.setting(self.setting))
                self.warm[entry.family] = set()
            answer = {}
            if entry.name not in self.warm[entry.family]:
                answer = self.running[entry.family].turn(entry.name, CHECKED_STEPS, LONGEST_TURN_S)
                self.warm[entry.family].add(entry.name)
            return self.running[entry.family].turn(entry.name, steps, LONGEST_TURN_S) if steps else answer
        except (PeerFailed, OSError) as error:
            self.fail(entry, str(error))
            if ranks := self.running.pop(entry.family, None):
                ranks.stop()
            return {}

    def fail(self, entry: Entry, text: str) -> None:
        self.measured.failures[entry.name] = text.replace(str(os.path.expanduser("~")), "~")


def ideal_share(setting: Setting, cores: int) -> float:
    """The best step of a pipeline over the step of one process: its bubble, or the cores if ranks outnumber them."""
    m, p = setting.microbatches, setting.ranks
    return max((m + p - 1) / (m * p), 1 / min(p, cores))
