"""The GPT and the T5 of the samples, with the same names of parameters, as lists of cells that may be cut anywhere.

A cell takes and gives a tuple of tensors, the state; what every stage can know by itself is in a `Context`. Weights and
batches are closed formulas: perf/peers.cpp has the same ones. B rows, T tokens, D wide, H heads.
"""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PRIME, BYTE_TOKENS, FIRST_BYTE = 65521, 256, 3
NEVER_ATTEND = torch.finfo(torch.float32).min


@dataclass(frozen=True)
class Setting:
    """What is trained: the same for every peer."""

    workload: str  # gpt, t5, llama or sleep
    ranks: int
    microbatches: int
    rows: int = 32
    length: int = 64
    tiny: bool = False
    forward_ms: float = 10.0  # of a rank and microbatch, if it sleeps
    backward_ms: float = 20.0

    @property
    def learning_rate(self) -> float:
        """High enough that a wrong gradient shows in the next losses."""
        return {"gpt": 0.2, "t5": 10.0, "llama": 0.2, "sleep": 0.0}[self.workload]


@dataclass
class Context:
    """Of one microbatch on one stage: tokens, and what the stage's cells share."""

    inputs: Tensor
    labels: Tensor
    shared: dict[str, Tensor] = field(default_factory=dict)

    def once(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        if name not in self.shared:
            self.shared[name] = make()
        return self.shared[name]


class Cell(nn.Module):
    """`cost`: multiplications, to cut a list of cells into parts that are equally long."""

    def __init__(self, cost: float, run: Callable[..., tuple[Tensor, ...]], **parts: nn.Module) -> None:
        super().__init__()
        self.cost, self.run = cost, run
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, context: Context, *state: Tensor) -> tuple[Tensor, ...]:
        return self.run(context, *state)


class Stage(nn.Module):
    """Some consecutive cells. Every peer's stage is this one."""

    def __init__(self, cells: list[Cell]) -> None:
        super().__init__()
        self.cells = nn.ModuleList(cells)

    def forward(self, *state: Tensor, inputs: Tensor, labels: Tensor) -> Tensor | tuple[Tensor, ...]:
        context = Context(inputs, labels)
        for cell in self.cells:
            state = cell(context, *state)
        return state[0] if len(state) == 1 else state


@dataclass
class Model:
    cells: list[Cell]
    tied: dict[str, nn.Parameter]  # parameters that several cells read
    net: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]  # of the last state and the labels
    batch: Callable[[int], tuple[Tensor, Tensor]]  # inputs and labels of a step


# ---- the formulas ----------------------------------------------------------------------------------------------------


def fill(net: nn.Module) -> None:
    """Whole numbers modulo a prime, so every implementation agrees on each bit."""
    for index, (name, parameter) in enumerate(sorted(net.named_parameters()), 1):
        k = torch.arange(parameter.numel())
        whole = (k * k % PRIME * 40503 + k * 7919 + index * 977) % PRIME
        noise = whole.double() / PRIME - 0.5
        matrix = parameter.dim() > 1
        scale = math.sqrt(3 / parameter.size(-1)) if matrix else 0.2
        middle = 1 if not matrix and name.endswith("weight") else 0
        parameter.data.copy_((noise * scale + middle).view_as(parameter))


def sequences(step: int, rows: int, length: int, vocabulary: int) -> Tensor:
    """[rows, length], each counting in steps of its own."""
    row = (torch.arange(rows) + step * rows).unsqueeze(1)
    return ((row * 37 + 11) + (row % 7 + 1) * torch.arange(length)) % vocabulary


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), labels.flatten())


# ---- GPT: samples/models/gpt.cpp -------------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.attention(self.norm1(x))
        return y + self.down(F.gelu(self.up(self.norm2(y)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(vocabulary, width),
                "wpe": nn.Embedding(length, width),
                "h": nn.ModuleList(Block(width, heads) for _ in range(layers)),
                "ln_f": nn.LayerNorm(width),
            }
        )
        self.lm_head = nn.Linear(width, vocabulary, bias=False)


def gpt(setting: Setting) -> Model:
    vocabulary, width, heads = (64, 32, 2) if setting.tiny else (256, 256, 8)
    length, layers = setting.length + 1, 8
    net = Gpt(vocabulary, length, width, heads, layers)
    fill(net)
    wte, wpe, blocks, ln_f = (net.transformer[name] for name in ("wte", "wpe", "h", "ln_f"))

    def embed(_: Context, tokens: Tensor) -> tuple[Tensor, ...]:
        return (wte(tokens) + wpe(torch.arange(tokens.size(1))),)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        tokens = sequences(step, setting.rows, length, vocabulary)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    cells = [Cell(0, embed, wte=wte, wpe=wpe)]
    cells += [Cell(12 * width, lambda _, x, b=block: (b(x),), block=block) for block in blocks]
    cells += [Cell(vocabulary, lambda _, x: (net.lm_head(ln_f(x)),), ln_f=ln_f, lm_head=net.lm_head)]
    return Model(cells, {}, net, cross_entropy, batch)


# ---- T5: samples/t5 --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class T5Config:
    vocabulary: int = 384
    width: int = 192
    head_width: int = 32
    inner: int = 512
    layers: int = 4
    heads: int = 6
    buckets: int = 32
    farthest: int = 128


class T5Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + 1e-6) * self.weight


def bucket(relative: Tensor, both_ways: bool, buckets: int, farthest: int) -> Tensor:
    first = torch.zeros_like(relative)
    if both_ways:
        buckets //= 2
        first, distance = (relative > 0).long() * buckets, relative.abs()
    else:
        distance = (-relative).clamp_min(0)
    exact = buckets // 2
    beyond = torch.log(distance.clamp_min(exact).float() / exact) / math.log(farthest / exact) * (buckets - exact)
    far = (exact + beyond.long()).clamp_max(buckets - 1)
    return first + torch.where(distance < exact, distance, far)


class T5Attention(nn.Module):
    def __init__(self, config: T5Config, owns_bias: bool) -> None:
        super().__init__()
        self.config = config
        inner = config.heads * config.head_width
        self.q, self.k, self.v = (nn.Linear(config.width, inner, bias=False) for _ in range(3))
        self.o = nn.Linear(inner, config.width, bias=False)
        if owns_bias:
            self.relative_attention_bias = nn.Embedding(config.buckets, config.heads)

    def split(self, hidden: Tensor) -> Tensor:
        return hidden.view(*hidden.shape[:2], self.config.heads, self.config.head_width).transpose(1, 2)

    def forward(self, hidden: Tensor, memory: Tensor, mask: Tensor, bias: Tensor | None) -> Tensor:
        query, key, value = self.split(self.q(hidden)), self.split(self.k(memory)), self.split(self.v(memory))
        scores = torch.matmul(query, key.transpose(-2, -1)) + mask
        if bias is not None:
            scores = scores + bias
        context = torch.matmul(torch.softmax(scores, -1), value)
        return self.o(context.transpose(1, 2).flatten(2))


def relative_bias(table: nn.Embedding, config: T5Config, both_ways: bool, length: int) -> Tensor:
    """[1, H, length, length]"""
    position = torch.arange(length)
    relative = position.unsqueeze(0) - position.unsqueeze(1)
    buckets = bucket(relative, both_ways, config.buckets, config.farthest)
    return table(buckets).permute(2, 0, 1).unsqueeze(0)


class T5Dense(nn.Module):
    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.wi = nn.Linear(config.width, config.inner, bias=False)
        self.wo = nn.Linear(config.inner, config.width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.wo(torch.relu(self.wi(hidden)))


def t5_layer(config: T5Config, name: str, layer: nn.Module) -> nn.ModuleDict:
    return nn.ModuleDict({name: layer, "layer_norm": T5Norm(config.width)})


class T5Block(nn.Module):
    def __init__(self, config: T5Config, decoder: bool, owns_bias: bool) -> None:
        super().__init__()
        layers = [t5_layer(config, "SelfAttention", T5Attention(config, owns_bias))]
        if decoder:
            layers.append(t5_layer(config, "EncDecAttention", T5Attention(config, False)))
        layers.append(t5_layer(config, "DenseReluDense", T5Dense(config)))
        self.layer = nn.ModuleList(layers)

    @property
    def own_attention(self) -> T5Attention:
        return self.layer[0]["SelfAttention"]

    def forward(self, x: Tensor, mask: Tensor, bias: Tensor, memory: Tensor | None, memory_mask: Tensor) -> Tensor:
        normed = self.layer[0]["layer_norm"](x)
        x = x + self.own_attention(normed, normed, mask, bias)
        if memory is not None:
            layer = self.layer[1]
            x = x + layer["EncDecAttention"](layer["layer_norm"](x), memory, memory_mask, None)
        layer = self.layer[-1]
        return x + layer["DenseReluDense"](layer["layer_norm"](x))


def t5_stack(config: T5Config, decoder: bool) -> nn.ModuleDict:
    blocks = nn.ModuleList(T5Block(config, decoder, index == 0) for index in range(config.layers))
    return nn.ModuleDict({"block": blocks, "final_layer_norm": T5Norm(config.width)})


class T5(nn.Module):
    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.shared = nn.Embedding(config.vocabulary, config.width)
        self.encoder, self.decoder = t5_stack(config, False), t5_stack(config, True)


def padding_mask(context: Context) -> Tensor:
    def make() -> Tensor:
        padding = (context.inputs == 0).unsqueeze(1).unsqueeze(1)
        return torch.zeros(padding.shape).masked_fill(padding, NEVER_ATTEND)

    return context.once("padding", make)


def causal_mask(context: Context) -> Tensor:
    length = context.labels.size(1)
    return context.once("causal", lambda: torch.full((1, 1, length, length), NEVER_ATTEND).triu(1))


def shift_right(labels: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(labels[:, :1]), labels[:, :-1]], 1)


def t5(setting: Setting) -> Model:
    config = T5Config(width=32, head_width=8, inner=64, heads=4) if setting.tiny else T5Config()
    net = T5(config)
    fill(net)
    cells = encoder_cells(config, net, setting.length) + decoder_cells(config, net, setting.length)
    tied = {"shared": net.shared.weight}
    for name, stack in (("encoder_bias", net.encoder), ("decoder_bias", net.decoder)):
        tied[name] = stack["block"][0].own_attention.relative_attention_bias.weight

    def batch(step: int) -> tuple[Tensor, Tensor]:
        tokens = sequences(step, setting.rows, setting.length, BYTE_TOKENS) + FIRST_BYTE
        return tokens, tokens.flip(1)

    return Model(cells, tied, net, cross_entropy, batch)


def encoder_cells(config: T5Config, net: T5, length: int) -> list[Cell]:
    table = net.encoder["block"][0].own_attention.relative_attention_bias

    def run_block(context: Context, x: Tensor, block: T5Block) -> tuple[Tensor, ...]:
        bias = context.once("encoder_bias", lambda: relative_bias(table, config, True, length))
        mask = padding_mask(context)
        return (block(x, mask, bias, None, mask),)

    cells = [Cell(0, lambda _, tokens: (net.shared(tokens),), shared=net.shared)]
    for block in net.encoder["block"]:
        run = lambda context, x, b=block: run_block(context, x, b)  # noqa: E731
        cells.append(Cell(block_cost(config, 4), run, block=block, table=table))
    norm = net.encoder["final_layer_norm"]
    return cells + [Cell(0, lambda _, x: (norm(x),), norm=norm)]


def decoder_cells(config: T5Config, net: T5, length: int) -> list[Cell]:
    table = net.decoder["block"][0].own_attention.relative_attention_bias

    def embed(context: Context, memory: Tensor) -> tuple[Tensor, ...]:
        return memory, net.shared(shift_right(context.labels))

    def run_block(context: Context, memory: Tensor, x: Tensor, block: T5Block) -> tuple[Tensor, ...]:
        bias = context.once("decoder_bias", lambda: relative_bias(table, config, False, length))
        return memory, block(x, causal_mask(context), bias, memory, padding_mask(context))

    def scores(_: Context, memory: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        return (F.linear(norm(x) * config.width**-0.5, net.shared.weight),)

    cells = [Cell(0, embed, shared=net.shared)]
    for block in net.decoder["block"]:
        run = lambda context, memory, x, b=block: run_block(context, memory, x, b)  # noqa: E731
        cells.append(Cell(block_cost(config, 8), run, block=block, table=table))
    norm = net.decoder["final_layer_norm"]
    return cells + [Cell(config.vocabulary, scores, norm=norm, shared=net.shared)]


def block_cost(config: T5Config, projections: int) -> float:
    return projections * config.heads * config.head_width + 2 * config.inner


# ---- modules that sleep ----------------------------------------------------------------------------------------------


sleeping = threading.Lock()  # one thread a rank, as everywhere


class Nap(torch.autograd.Function):
    """Sleeps on the way back."""

    @staticmethod
    def forward(ctx, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        with sleeping:
            time.sleep(ctx.seconds)
        return gradient, None


class Sleeper(nn.Module):
    """Half of the backward's time belongs to the input, half to the weight: zero-bubble schedules can split it."""

    def __init__(self, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.forward_s, self.half_s = forward_s, backward_s / 2

    def forward(self, x: Tensor) -> Tensor:
        with sleeping:
            time.sleep(self.forward_s)
        return Nap.apply(x, self.half_s) * Nap.apply(self.weight, self.half_s)


def sleep(setting: Setting, stages: int) -> Model:
    share = setting.ranks / stages / 1000
    sleepers = [Sleeper(setting.forward_ms * share, setting.backward_ms * share) for _ in range(stages)]
    cells = [Cell(1, lambda _, x, s=sleeper: (s(x),), sleeper=sleeper) for sleeper in sleepers]
    ones = torch.ones(setting.microbatches, 4)
    # The first stage's input asks for a gradient, as in perf bubble: else its backward would be half as long.
    cells.insert(0, Cell(0, lambda _, x: (x.detach().requires_grad_(),)))
    return Model(cells, {}, nn.ModuleList(sleepers), lambda y, _: y.sum() * 0, lambda _: (ones, ones))


# ---- both ------------------------------------------------------------------------------------------------------------


def make(setting: Setting, stages: int) -> Model:
    """`stages`: in how many parts it will be cut; only sleepers care."""
    if setting.workload == "sleep":
        return sleep(setting, stages)
    if setting.workload == "llama":
        from llama import llama  # which is made of what is here

        return llama(setting)
    return {"gpt": gpt, "t5": t5}[setting.workload](setting)


def cut(cells: list[Cell], parts: int) -> list[Stage]:
    """Consecutive cells in parts of which the most expensive one is as cheap as can be."""
    sums = [0.0]
    for cell in cells:
        sums.append(sums[-1] + cell.cost)
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [0])}  # by the end of the last part
    for _ in range(parts):
        best = {
            end: min(
                (max(most, sums[end] - sums[start]), ends + [end])
                for start, (most, ends) in best.items()
                if start < end
            )
            for end in range(1, len(cells) + 1)
            if any(start < end for start in best)
        }
    ends = best[len(cells)][1]
    return [Stage(cells[start:end]) for start, end in zip(ends, ends[1:])]
