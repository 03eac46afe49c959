"""The peers: each trains the same model in its own way, a step at a time."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from models import Model, Setting, Stage, cut, make


class Contestant(Protocol):
    def step(self, inputs: Tensor, labels: Tensor) -> float | None:
        """Trains one step; its loss, on any rank that knows it."""


class Plain:
    """One process, and torch alone."""

    def __init__(self, model: Model, setting: Setting) -> None:
        self.loss, self.microbatches = model.loss, setting.microbatches
        self.net = Stage(model.cells)
        self.optimizer = torch.optim.SGD(self.net.parameters(), setting.learning_rate)

    def step(self, inputs: Tensor, labels: Tensor) -> float:
        self.optimizer.zero_grad()
        total = 0.0
        for x, y in zip(inputs.chunk(self.microbatches), labels.chunk(self.microbatches)):
            loss = self.loss(self.net(x, inputs=x, labels=y), y) / self.microbatches
            loss.backward()
            total += loss.item()
        self.optimizer.step()
        return total


class Ties:
    """Sums the gradients of parameters that stages of several ranks hold."""

    def __init__(self, model: Model, stages: list[Stage], rank_of: Callable[[int], int]) -> None:
        self.groups: list[tuple[nn.Parameter, dist.ProcessGroup]] = []
        for parameter in model.tied.values():
            held = [i for i, stage in enumerate(stages) if any(p is parameter for p in stage.parameters())]
            ranks = sorted({rank_of(stage) for stage in held})
            group = dist.new_group(ranks)
            if dist.get_rank() in ranks and len(ranks) > 1:
                self.groups.append((parameter, group))

    def sum(self, gradients: dict[Tensor, Tensor] | None = None) -> None:
        for parameter, group in self.groups:
            dist.all_reduce(parameter.grad if gradients is None else gradients[parameter], group=group)


# ---- torch.distributed.pipelining ------------------------------------------------------------------------------------


class Pipelining:
    """A schedule of torch.distributed.pipelining with `chunks` stages a rank, in loops or in the shape of a V."""

    def __init__(self, schedule: str, chunks: int, v_shape: bool, setting: Setting) -> None:
        from torch.distributed import pipelining

        ranks, count = setting.ranks, setting.ranks * chunks
        rank_of = partial(self.rank_of, ranks=ranks, v_shape=v_shape)
        model = make(setting, count)
        parts = cut(model.cells, count)
        self.own = [i for i in range(count) if rank_of(i) == dist.get_rank()]
        self.last = count - 1 in self.own
        self.loss, self.microbatches = model.loss, setting.microbatches
        self.ties = Ties(model, parts, rank_of)
        stages = [pipelining.PipelineStage(parts[i], i, count, torch.device("cpu")) for i in self.own]
        # Gradients are scaled here: a parameter in two stages of a rank would be scaled twice.
        self.schedule = getattr(pipelining, schedule)(
            stages if chunks > 1 else stages[0], self.microbatches, loss_fn=self.scaled_loss, scale_grads=False
        )
        own_parameters = {p: None for i in self.own for p in parts[i].parameters()}  # each once
        self.optimizer = torch.optim.SGD(own_parameters, setting.learning_rate)

    @staticmethod
    def rank_of(stage: int, ranks: int, v_shape: bool) -> int:
        return 2 * ranks - 1 - stage if v_shape and stage >= ranks else stage % ranks

    def scaled_loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        return self.loss(scores, labels) / self.microbatches

    def step(self, inputs: Tensor, labels: Tensor) -> float | None:
        self.optimizer.zero_grad()
        losses: list[Tensor] = []
        first = (inputs,) if 0 in self.own else ()
        last = {"target": labels, "losses": losses} if self.last else {}
        self.schedule.step(*first, **last, inputs=inputs, labels=labels)
        self.ties.sum()
        self.optimizer.step()
        return torch.stack(losses).sum().item() if losses else None


SCHEDULES = {  # name: class, stages a rank, V
    "gpipe": ("ScheduleGPipe", 1, False),
    "1f1b": ("Schedule1F1B", 1, False),
    "interleaved_1f1b": ("ScheduleInterleaved1F1B", 2, False),
    "interleaved_zero_bubble": ("ScheduleInterleavedZeroBubble", 2, False),
    "zbv_zero_bubble": ("ScheduleZBVZeroBubble", 2, True),
}


# ---- torch RPC, by hand ----------------------------------------------------------------------------------------------

served: "Rpc"  # the stage of this rank, for calls of others
computing = threading.Lock()  # one thread a rank, as everywhere


def rpc_forward(state, inputs: Tensor, labels: Tensor) -> Tensor | tuple[Tensor, ...]:
    """`state` is what the stage before has promised."""
    arrived = state.to_here()
    with computing:
        arrived = arrived if isinstance(arrived, tuple) else (arrived,)
        return served.stage(*arrived, inputs=inputs, labels=labels)


def rpc_loss(state, inputs: Tensor, labels: Tensor) -> Tensor:
    scores = rpc_forward(state, inputs, labels)
    with computing:
        return served.loss(scores, labels)


def rpc_update(context: int) -> None:
    served.update(context)


class Rpc:
    """Remote references go from stage to stage, and distributed autograd goes back; rank 0 starts everything."""

    def __init__(self, setting: Setting) -> None:
        global served
        served = self
        model = make(setting, setting.ranks)
        parts = cut(model.cells, setting.ranks)
        self.rank, self.ranks, self.microbatches = dist.get_rank(), setting.ranks, setting.microbatches
        self.loss, self.stage, self.learning_rate = model.loss, parts[self.rank], setting.learning_rate
        self.ties = Ties(model, parts, lambda stage: stage)

    def update(self, context: int) -> None:
        from torch.distributed import autograd

        gradients = autograd.get_gradients(context)
        self.ties.sum(gradients)
        with torch.no_grad():
            for parameter, gradient in gradients.items():
                parameter -= self.learning_rate * gradient

    def start(self, x: Tensor, y: Tensor):
        from torch.distributed import rpc

        state = rpc.RRef(x)
        for rank in range(self.ranks - 1):
            state = rpc.remote(f"rank{rank}", rpc_forward, (state, x, y))
        return rpc.rpc_async(f"rank{self.ranks - 1}", rpc_loss, (state, x, y))

    def step(self, inputs: Tensor, labels: Tensor) -> float | None:
        if self.rank > 0:
            return None  # the threads of RPC do the work
        from torch.distributed import autograd, rpc

        with autograd.context() as context:
            slices = zip(inputs.chunk(self.microbatches), labels.chunk(self.microbatches))
            losses = torch.stack([loss for loss in torch.futures.wait_all([self.start(x, y) for x, y in slices])])
            mean = losses.mean()
            autograd.backward(context, [mean])
            updates = [rpc.rpc_async(f"rank{rank}", rpc_update, (context,)) for rank in range(self.ranks)]
            torch.futures.wait_all(updates)
        return mean.item()


# ---- replicas --------------------------------------------------------------------------------------------------------


class Replicas:
    """DistributedDataParallel, which adds up gradients in buckets while the last microbatch's backward runs."""

    knows_own_loss = True

    def __init__(self, model: Model, setting: Setting) -> None:
        self.loss, self.microbatches = model.loss, setting.microbatches // setting.ranks
        self.net = nn.parallel.DistributedDataParallel(Stage(model.cells), bucket_cap_mb=25)
        self.optimizer = torch.optim.SGD(self.net.parameters(), setting.learning_rate)

    def step(self, inputs: Tensor, labels: Tensor) -> float:
        inputs, labels = (all.chunk(dist.get_world_size())[dist.get_rank()] for all in (inputs, labels))
        self.optimizer.zero_grad()
        total = 0.0
        for i, (x, y) in enumerate(zip(inputs.chunk(self.microbatches), labels.chunk(self.microbatches)), 1):
            with nullcontext() if i == self.microbatches else self.net.no_sync():
                loss = self.loss(self.net(x, inputs=x, labels=y), y) / self.microbatches
                loss.backward()
            total += loss.item()
        self.optimizer.step()
        return total


# ---- DeepSpeed -------------------------------------------------------------------------------------------------------


class DeepSpeed:
    """PipelineModule, which cuts by itself: by numbers of parameters, its default."""

    def __init__(self, setting: Setting) -> None:
        import deepspeed
        from deepspeed.pipe import PipelineModule

        from deepspeed_layers import layers_of

        model = make(setting, setting.ranks)
        net = PipelineModule(
            layers=layers_of(model, setting),
            num_stages=setting.ranks,
            loss_fn=model.loss,
            activation_checkpoint_interval=0,
        )
        rows = setting.rows // setting.microbatches if setting.workload != "sleep" else 1
        self.engine, *_ = deepspeed.initialize(
            model=net,
            optimizer=torch.optim.SGD([p for p in net.parameters() if p.requires_grad], setting.learning_rate),
            config={
                "train_micro_batch_size_per_gpu": rows,
                "gradient_accumulation_steps": setting.microbatches,
                "train_batch_size": rows * setting.microbatches,
                "steps_per_print": 1 << 30,
                "gradient_clipping": 0.0,  # its default is 1
            },
        )
        self.microbatches, self.workload = setting.microbatches, setting.workload

    def step(self, inputs: Tensor, labels: Tensor) -> float:
        slices = zip(inputs.chunk(self.microbatches), labels.chunk(self.microbatches))
        inputs_of = (lambda x, y: (x, y)) if self.workload == "t5" else (lambda x, _: x)
        return self.engine.train_batch(iter([(inputs_of(x, y), y) for x, y in slices])).item()


# ---- choice ----------------------------------------------------------------------------------------------------------


def contestant(variant: str, setting: Setting) -> Contestant:
    if variant in SCHEDULES:
        return Pipelining(*SCHEDULES[variant], setting)
    if variant == "one_process":
        return Plain(make(setting, 1), setting)
    if variant == "ddp":
        return Replicas(make(setting, 1), setting)
    if variant in ("tensor_parallel", "sequence_parallel"):
        from llama import TensorParallel

        return TensorParallel(make(setting, 1), setting, sequence=variant == "sequence_parallel")
    return {"rpc": Rpc, "deepspeed": DeepSpeed}[variant](setting)
