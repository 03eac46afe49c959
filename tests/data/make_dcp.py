#!/usr/bin/env python3
"""Writes tests/data/dcp: what torch's distributed checkpoint leaves in Hugging Face form. Two ranks save a matrix
that they share by rows, and a vector that both have: parts of tensors in sharded/, whole ones above.

    pip install torch safetensors && tests/data/make_dcp.py

Made with torch 2.13.0 and safetensors 0.8.0.
"""
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as multiprocessing
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "dcp")


def save(rank):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29731")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    matrix = torch.arange(12, dtype=torch.float32).reshape(4, 3)
    tensors = {"w": distribute_tensor(matrix, init_device_mesh("cpu", (2,)), [Shard(0)]),
               "b": torch.arange(3, dtype=torch.float32)}
    dcp.save(tensors, storage_writer=dcp.HuggingFaceStorageWriter(FOLDER, save_distributed=True,
                                                                  enable_consolidation=True))
    dist.destroy_process_group()


if __name__ == "__main__":
    multiprocessing.spawn(save, nprocs=2)
