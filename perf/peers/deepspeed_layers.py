"""The models as lists of layers for DeepSpeed's PipelineModule.

Its T5 is another program than everybody else's: a layer takes and gives one tuple, so whatever a later layer reads
travels through all between, and a table that several layers read is a tied layer.
"""

from collections.abc import Callable

from deepspeed.pipe import TiedLayerSpec
from models import T5, Cell, Context, Model, Setting, T5Block, causal_mask, padding_mask, relative_bias, shift_right
from torch import Tensor, nn
from torch.nn import functional as F

State = tuple[Tensor, ...]


class Layer(nn.Module):
    """A cell that needs no tokens."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(Context(x, x), x)[0]


class Table(nn.Module):
    """A tied parameter: each stage that reads it has a copy."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().clone())


class Call(nn.Module):
    """`run` of a state and a part of the model."""

    def __init__(self, part: nn.Module, run: Callable[[nn.Module, State], State]) -> None:
        super().__init__()
        self.part, self.run = part, run

    def forward(self, state: State) -> State:
        return self.run(self.part, state)


def encoder_block(block: T5Block, state: State) -> State:
    inputs, labels, x, bias = state
    mask = padding_mask(Context(inputs, labels))
    return inputs, labels, block(x, mask, bias, None, mask), bias


def decoder_block(block: T5Block, state: State) -> State:
    inputs, labels, memory, x, bias = state
    context = Context(inputs, labels)
    return inputs, labels, memory, block(x, causal_mask(context), bias, memory, padding_mask(context)), bias


def embed_inputs(table: Table, state: State) -> State:
    inputs, labels = state
    return inputs, labels, F.embedding(inputs, table.weight)


def embed_labels(table: Table, state: State) -> State:
    return *state, F.embedding(shift_right(state[1]), table.weight)


def scores(table: Table, hidden: Tensor) -> Tensor:
    return F.linear(hidden * table.weight.size(1) ** -0.5, table.weight)


def t5_layers(net: T5) -> list:
    def tied(run: Callable) -> TiedLayerSpec:
        return TiedLayerSpec("shared", Table, net.shared.weight, forward_fn=run)

    def stack(part: nn.ModuleDict, both_ways: bool, run_block: Callable[[T5Block, State], State]) -> list[Call]:
        first = part["block"][0].own_attention
        table, config = first.relative_attention_bias, first.config
        del first.relative_attention_bias  # it is a layer of its own here

        def with_bias(table: nn.Embedding, state: State) -> State:
            return *state, relative_bias(table, config, both_ways, state[-1].size(1)).contiguous()

        return [Call(table, with_bias), *(Call(block, run_block) for block in part["block"])]

    encoder, decoder = stack(net.encoder, True, encoder_block), stack(net.decoder, False, decoder_block)
    end_of_encoder = Call(net.encoder["final_layer_norm"], lambda norm, state: (*state[:2], norm(state[2])))
    end_of_decoder = Call(net.decoder["final_layer_norm"], lambda norm, state: norm(state[3]))
    return [tied(embed_inputs), *encoder, end_of_encoder, tied(embed_labels), *decoder, end_of_decoder, tied(scores)]


def layers_of(model: Model, setting: Setting) -> list:
    return t5_layers(model.net) if setting.workload == "t5" else [Layer(cell) for cell in model.cells]
