"""One rank of some peers: takes a step with one of them whenever a line comes through its pipe."""

import argparse
import json
import os
import time
from dataclasses import fields
from datetime import timedelta
from typing import TextIO

import torch
import torch.distributed as dist

import call
from contestants import Contestant, contestant
from models import Setting, make


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("--turns", "--family", "--setting"):
        parser.add_argument(name, required=True)
    for name in ("--rank", "--port"):
        parser.add_argument(name, type=int, required=True)
    return parser.parse_args()


def start_ranks(arguments: argparse.Namespace, ranks: int) -> None:
    if ranks == 1:
        return
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(arguments.port), RANK=str(arguments.rank), WORLD_SIZE=str(ranks),
        LOCAL_RANK=str(arguments.rank), GLOO_SOCKET_IFNAME="lo", TP_SOCKET_IFNAME="lo",
    )  # fmt: skip
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    if arguments.family == "rpc":
        start_rpc(arguments, ranks)
    if arguments.family == "deepspeed":
        import deepspeed

        deepspeed.init_distributed(dist_backend="gloo")


def start_rpc(arguments: argparse.Namespace, ranks: int) -> None:
    from torch.distributed import rpc

    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=32, rpc_timeout=120, init_method=f"tcp://127.0.0.1:{arguments.port + 1}"
    )
    rpc.init_rpc(f"rank{arguments.rank}", rank=arguments.rank, world_size=ranks, rpc_backend_options=options)


class Turns:
    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.batch = make(setting, setting.ranks).batch
        self.made: dict[str, tuple[Contestant, int]] = {}  # with the number of its next step

    def take(self, variant: str, steps: int) -> dict[str, list[float]]:
        if variant == "call":
            return call.measure(steps)
        if variant not in self.made:
            self.made[variant] = (contestant(variant, self.setting), 0)
        one, first = self.made[variant]
        answer: dict[str, list[float]] = {"ms": [], "losses": []}
        for step in range(first, first + steps):
            inputs, labels = self.batch(step)
            self.barrier()
            start = time.perf_counter()
            loss = one.step(inputs, labels)
            self.barrier()
            answer["ms"].append((time.perf_counter() - start) * 1000)
            mean = getattr(one, "knows_own_loss", False)
            answer["losses"].append(self.mean_loss(loss) if mean else self.known_loss(loss))
        self.made[variant] = (one, first + steps)
        return answer

    def barrier(self) -> None:
        if self.setting.ranks > 1:
            dist.barrier()

    def known_loss(self, loss: float | None) -> float:
        """Whoever knows it tells rank 0; all who know it know the same."""
        if self.setting.ranks == 1:
            return loss
        known = torch.tensor(-torch.inf if loss is None else loss, dtype=torch.float64)
        dist.all_reduce(known, dist.ReduceOp.MAX)
        return known.item()

    def mean_loss(self, loss: float) -> float:
        """Each rank knows that of its own rows."""
        total = torch.tensor(loss, dtype=torch.float64)
        dist.all_reduce(total)
        return total.item() / self.setting.ranks


def serve(rank: int, turns: Turns, commands: TextIO, answers: TextIO) -> None:
    for line in commands:
        variant, steps = line.split()
        if variant == "end":
            return
        answer = turns.take(variant, int(steps))
        if rank == 0:
            print(json.dumps(answer), file=answers, flush=True)


def main() -> None:
    arguments = parse()
    given = json.loads(arguments.setting)
    setting = Setting(**{f.name: given[f.name] for f in fields(Setting)})
    torch.set_num_threads(1)
    start_ranks(arguments, setting.ranks)
    folder, rank = arguments.turns, arguments.rank
    with open(f"{folder}/turn.{rank}") as commands, open(f"{folder}/answers", "w") as answers:
        serve(rank, Turns(setting), commands, answers)
    os._exit(0)  # nothing here is worth waiting for threads of peers


if __name__ == "__main__":
    main()
