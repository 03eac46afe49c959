"""The Llama of samples/models/llama.cpp under the same names of parameters, whole, and as torch spreads it over ranks.

B rows, T tokens, D wide, H heads of which groups share K heads of keys.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from models import Cell, Model, Setting, cross_entropy, fill, sequences


class Config:
    def __init__(self, setting: Setting) -> None:
        small = setting.tiny
        self.vocabulary, self.width, self.inner = (64, 32, 48) if small else (256, 256, 704)
        self.heads, self.keys = (4, 2) if small else (8, 4)
        self.layers = 2 if small else 6


def turned(heads: Tensor) -> Tensor:
    """[B, heads, T, size], pairs of halves turned by position."""
    size, length = heads.size(-1), heads.size(-2)
    frequencies = 1 / 10000 ** (torch.arange(0, size, 2).float() / size)
    angle = torch.outer(torch.arange(length).float(), frequencies).repeat(1, 2)
    first, second = heads.chunk(2, -1)
    return heads * angle.cos() + torch.cat([-second, first], -1) * angle.sin()


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.size = config.width // config.heads
        width, keys = config.width, config.keys * self.size
        self.q_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k_proj, self.v_proj = (nn.Linear(width, keys, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (-1, self.size)).transpose(1, 2)  # as many heads as this rank has
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        y = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(config.width, config.inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(config.inner, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = (nn.RMSNorm(config.width, 1e-6) for _ in range(2))
        self.self_attn, self.mlp = Attention(config), Mlp(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.model = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(config.vocabulary, config.width),
                "layers": nn.ModuleList(Layer(config) for _ in range(config.layers)),
                "norm": nn.RMSNorm(config.width, 1e-6),
            }
        )
        self.lm_head = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.model["embed_tokens"](tokens)
        for layer in self.model["layers"]:
            x = layer(x)
        return self.lm_head(self.model["norm"](x))


def llama(setting: Setting) -> Model:
    config = Config(setting)
    net = Llama(config)
    fill(net)
    table, layers, norm = (net.model[name] for name in ("embed_tokens", "layers", "norm"))

    def batch(step: int) -> tuple[Tensor, Tensor]:
        tokens = sequences(step, setting.rows, setting.length + 1, config.vocabulary)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    of_layer = 2 * config.width + 2 * config.width * config.keys / config.heads + 3 * config.inner
    cells = [Cell(0, lambda _, tokens: (table(tokens),), table=table)]
    cells += [Cell(of_layer, lambda _, x, b=layer: (b(x),), layer=layer) for layer in layers]
    cells += [Cell(config.vocabulary, lambda _, x: (net.lm_head(norm(x)),), norm=norm, head=net.lm_head)]
    return Model(cells, {}, net, cross_entropy, batch)


# ---- torch.distributed.tensor.parallel -------------------------------------------------------------------------------


class TensorParallel:
    """Column- and row-wise products, as torch's tutorial cuts a Llama; along the sequence between them, or whole there."""

    def __init__(self, model: Model, setting: Setting, sequence: bool) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        self.loss, self.microbatches, self.net = model.loss, setting.microbatches, model.net
        self.spread(init_device_mesh("cpu", (dist.get_world_size(),)), sequence)
        self.optimizer = torch.optim.SGD(self.net.parameters(), setting.learning_rate)

    def spread(self, mesh, sequence: bool) -> None:
        from torch.distributed.tensor import Replicate, Shard
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            PrepareModuleInput,
            RowwiseParallel,
            SequenceParallel,
            parallelize_module,
        )

        between = Shard(1) if sequence else Replicate()
        norms = SequenceParallel()
        whole = PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),))
        ends = {
            "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
            "lm_head": ColwiseParallel(input_layouts=between, output_layouts=Replicate()),
        }
        block = {f"self_attn.{name}_proj": ColwiseParallel() for name in ("q", "k", "v")}
        block |= {f"mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")}
        block |= {name: RowwiseParallel(output_layouts=between) for name in ("self_attn.o_proj", "mlp.down_proj")}
        if sequence:
            ends["model.norm"] = norms
            block |= {"input_layernorm": norms, "post_attention_layernorm": norms}
            block |= {"self_attn": whole, "mlp": whole}
        parallelize_module(self.net, mesh, ends)
        for layer in self.net.model["layers"]:
            parallelize_module(layer, mesh, block)

    def step(self, inputs: Tensor, labels: Tensor) -> float:
        self.optimizer.zero_grad()
        total = 0.0
        for x, y in zip(inputs.chunk(self.microbatches), labels.chunk(self.microbatches)):
            loss = self.loss(self.net(x), y) / self.microbatches
            loss.backward()
            total += loss.item()
        self.optimizer.step()
        return total
