"""What PyTorch's batch norm makes, in float64, of values with a large mean and a small variance:
what sync_norm_stable in shared_jobs.cpp compares synchronized batch norm with, of the
same values in float32. tests/golden/python_ddp/batch_norm.json was made by it:

    python3 python_batch_norm_golden.py > batch_norm.json
"""

import json

import torch

ROWS, CHANNELS = 12, 2


def value(row, channel):
    return 1e4 * (channel + 1) + 0.0625 * ((7 * row + 3 * channel) % 11)  # exact in float32


x = torch.tensor([[value(r, c) for c in range(CHANNELS)] for r in range(ROWS)],
                 dtype=torch.float64, requires_grad=True)
weight = torch.tensor([1.5, -0.5], dtype=torch.float64, requires_grad=True)
bias = torch.tensor([0.25, 2.0], dtype=torch.float64, requires_grad=True)
mean, variance = torch.zeros(CHANNELS, dtype=torch.float64), torch.ones(CHANNELS, dtype=torch.float64)
y = torch.nn.functional.batch_norm(x, mean, variance, weight, bias, True, 0.1, 1e-5)
factor = torch.tensor([[((5 * r + c) % 7) - 3.0 for c in range(CHANNELS)] for r in range(ROWS)],
                      dtype=torch.float64)
(y * factor).sum().backward()
print(json.dumps({"output": y.flatten().tolist(), "input_grad": x.grad.flatten().tolist(),
                  "weight_grad": weight.grad.tolist(), "bias_grad": bias.grad.tolist(),
                  "running_mean": mean.tolist(), "running_var": variance.tolist()}, indent=1))
