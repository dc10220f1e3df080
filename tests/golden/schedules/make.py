"""Writes schedules.safetensors: what torch.optim.lr_scheduler gives for 1,000 steps.

One F64 tensor of 1,000 values for each schedule of trainer/schedule, base rate 0.1 with SGD;
NAME.momentum where the schedule moves it. Run with Python's torch; the output is committed.
"""

import json
import math
import struct
import sys
import warnings
from pathlib import Path

import torch
from torch.optim import lr_scheduler as s

warnings.simplefilter("ignore")
STEPS = 1000


def sgd():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)


def sequential(o):
    return s.SequentialLR(
        o, [s.LinearLR(o, 0.01, 1.0, 100), s.CosineAnnealingWarmRestarts(o, 150, 2, 1e-4),
            s.ExponentialLR(o, 0.99)], [100, 700])


MAKERS = {
    "lambda": lambda o: s.LambdaLR(o, lambda n: 1 / (1 + 0.01 * n)),
    "linear": lambda o: s.LinearLR(o, 0.01, 1.0, 250),
    "exponential": lambda o: s.ExponentialLR(o, 0.995),
    "multi_step": lambda o: s.MultiStepLR(o, [100, 300, 300, 900], 0.5),
    "cosine": lambda o: s.CosineAnnealingLR(o, 400, 0.001),
    "cosine_restarts": lambda o: s.CosineAnnealingWarmRestarts(o, 70, 1, 0.001),
    "cosine_restarts_longer": lambda o: s.CosineAnnealingWarmRestarts(o, 50, 2, 0.001),
    "one_cycle": lambda o: s.OneCycleLR(o, 0.5, STEPS),
    "one_cycle_three": lambda o: s.OneCycleLR(o, 0.5, STEPS, pct_start=0.25,
                                              anneal_strategy="linear", three_phase=True),
    "sequential": sequential,
}

tensors = {}
for name, make in MAKERS.items():
    optimizer = sgd()
    scheduler = make(optimizer)
    rates, momenta = [], []
    for _ in range(STEPS):
        group = optimizer.param_groups[0]
        rates.append(float(group["lr"]))
        momenta.append(float(group["momentum"]))
        optimizer.step()
        scheduler.step()
    tensors[name] = rates
    if name.startswith("one_cycle"):
        tensors[name + ".momentum"] = momenta

header, data = {}, b""
for name, values in sorted(tensors.items()):
    assert all(math.isfinite(v) for v in values)
    begin = len(data)
    data += struct.pack(f"<{STEPS}d", *values)
    header[name] = {"dtype": "F64", "shape": [STEPS], "data_offsets": [begin, len(data)]}
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("schedules.safetensors")
out.write_bytes(struct.pack("<Q", len(text)) + text + data)
