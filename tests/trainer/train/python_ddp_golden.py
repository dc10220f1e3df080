"""Trains a small model for 50 steps with Python's DistributedDataParallel, two ranks over Gloo, and
writes what each step began with and came to, as one safetensors file: what parity_test.cpp compares
ours with. tests/golden/python_ddp/adamw.safetensors was made by it:

    python3 python_ddp_golden.py OUT.safetensors

Step K's tensors: sKK.model.NAME (weights and buffers before the step), sKK.exp_avg.NAME,
sKK.exp_avg_sq.NAME, sKK.loss (of each rank), sKK.grad_norm (after averaging). s50.model.* is the
end. The inputs are functions of the step: see inputs().
"""

import json
import os
import socket
import struct
import sys

import torch
import torch.distributed as dist
from torch import nn

STEPS, BATCH = 50, 6


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(6)
        self.fc = nn.Linear(6, 3)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)))
        return self.fc(x.mean((2, 3)))


def inputs(step, rank):
    """Both sides compute the same in double: only then are they rounded."""
    index = torch.arange(BATCH * 36, dtype=torch.float64) + (step * 2 + rank) * 1000
    return (torch.sin(index * 0.37) + torch.cos(index * 0.11)).float().view(BATCH, 1, 6, 6), \
        (torch.arange(BATCH) + step + rank) % 3


def write(path, tensors):
    header, data = {}, b""
    for name, tensor in sorted(tensors.items()):
        raw = tensor.contiguous().numpy().tobytes()
        header[name] = {"dtype": {torch.float32: "F32", torch.int64: "I64"}[tensor.dtype],
                        "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def train(rank, port, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = Net()
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    out = {}
    for step in range(STEPS):
        # What forward begins with: rank 0's buffers.
        for name, tensor in model.state_dict().items():
            out[f"s{step:02}.model.{name}"] = tensor.clone()
        for name, parameter in model.named_parameters():
            for key in ("exp_avg", "exp_avg_sq"):
                state = optimizer.state[parameter].get(key, torch.zeros_like(parameter))
                out[f"s{step:02}.{key}.{name}"] = state.clone()
        x, y = inputs(step, rank)
        loss = nn.functional.cross_entropy(ddp(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        optimizer.step()
        optimizer.zero_grad()
        losses = [torch.zeros(1), torch.zeros(1)]
        dist.all_gather(losses, loss.detach().view(1))
        out[f"s{step:02}.loss"] = torch.cat(losses)
        out[f"s{step:02}.grad_norm"] = norm.detach().view(1)
    for name, tensor in model.state_dict().items():
        out[f"s{STEPS}.model.{name}"] = tensor.clone()
    if rank == 0:
        write(path, out)
    dist.destroy_process_group()


def main():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    child = os.fork()
    if child == 0:
        try:
            train(1, port, sys.argv[1])
        finally:
            os._exit(0)
    train(0, port, sys.argv[1])
    os.waitpid(child, 0)


if __name__ == "__main__":
    main()
