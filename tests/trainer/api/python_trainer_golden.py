"""Writes what PyTorch and Lightning come to, as JSON, for python_parity_test.cpp:

    python3 python_trainer_golden.py ../../golden/trainer

plateau.json: rates by torch.optim.lr_scheduler.ReduceLROnPlateau for 300 values of a metric.
gan.json: losses of a generator and a discriminator with an optimizer each, in one process.
lr_find.json: Lightning's Tuner.lr_find (2.6.6). It needs torch, numpy and lightning.
"""

import json
import math
import sys
from pathlib import Path

import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau

OUT = Path(sys.argv[1])


def write(name, value):
    (OUT / name).write_text(json.dumps(value) + "\n")


def formula(module, offset):
    """The same weights on both sides: by index alone."""
    for i, parameter in enumerate(module.parameters()):
        index = torch.arange(parameter.numel(), dtype=torch.float64)
        values = torch.sin(index * 0.7 + i + offset) * 0.4
        parameter.data.copy_(values.float().view_as(parameter))


def plateau():
    metrics = [math.exp(-0.02 * n) + 0.3 * math.sin(0.37 * n) * math.exp(-0.01 * n)
               for n in range(300)]
    cases = []
    for arguments in (
            {}, {"mode": "max"}, {"threshold_mode": "abs", "threshold": 0.05},
            {"mode": "max", "threshold_mode": "abs", "threshold": 0.01, "patience": 4},
            {"patience": 0, "factor": 0.5, "cooldown": 7}, {"patience": 2, "min_lr": 0.003},
            {"patience": 1, "eps": 0.01}, {"patience": 3, "factor": 0.7, "cooldown": 1}):
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
        scheduler = ReduceLROnPlateau(optimizer, **arguments)
        changes = [[-1, 0.1]]  # after which value, to which rate
        for n, metric in enumerate(metrics):
            scheduler.step(metric)
            rate = optimizer.param_groups[0]["lr"]
            if rate != changes[-1][1]:
                changes.append([n, rate])
        cases.append({"arguments": arguments, "changes": changes})
    write("plateau.json", {"metrics": metrics, "cases": cases})


def gan():
    generator = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8))
    discriminator = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1))
    formula(generator, 0.0)
    formula(discriminator, 5.0)
    g = torch.optim.SGD(generator.parameters(), lr=0.2, momentum=0.9)
    d = torch.optim.Adam(discriminator.parameters(), lr=1e-2, betas=(0.5, 0.999), fused=True)
    moves = ExponentialLR(g, 0.97)
    criterion = nn.functional.binary_cross_entropy_with_logits
    losses = []
    for step in range(20):
        rows = torch.arange(8, dtype=torch.float64).unsqueeze(1) + 8 * step
        real = torch.sin(rows * 1.3 + torch.arange(8) * 0.9).float()
        noise = torch.cos(rows * 2.1 + torch.arange(4) * 1.7).float()
        fake = generator(noise)
        one, zero = torch.ones(8, 1), torch.zeros(8, 1)
        d.zero_grad()
        d_loss = (criterion(discriminator(real), one) +
                  criterion(discriminator(fake.detach()), zero)) / 2
        d_loss.backward()
        d.step()
        g.zero_grad()
        g_loss = criterion(discriminator(fake), one)
        g_loss.backward()
        g.step()
        moves.step()
        losses.append([d_loss.item(), g_loss.item()])
    write("gan.json", {"losses": losses, "lr": g.param_groups[0]["lr"]})


def lr_find():
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.tuner import Tuner
    from torch.utils.data import DataLoader, TensorDataset

    class Small(LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
            formula(self.net, 0.0)
            self.lr = 0.1

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=self.lr)

    grid = torch.arange(40 * 8, dtype=torch.float32).view(40, 8)
    inputs = torch.sin(grid * 1.7 + 0.3)
    labels = (inputs.sum(1) * 2).round().long().remainder(3)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=4)
    cases = []
    for arguments in ({"min_lr": 1e-4, "max_lr": 10, "num_training": 30},
                      {"min_lr": 1e-3, "max_lr": 2, "num_training": 25, "mode": "linear"},
                      {"min_lr": 1e-3, "max_lr": 1e4, "num_training": 40,
                       "early_stop_threshold": 2.0}):
        trainer = Trainer(max_epochs=100, accelerator="cpu", logger=False,
                          enable_checkpointing=False, enable_progress_bar=False,
                          default_root_dir="/tmp")
        found = Tuner(trainer).lr_find(Small(), train_dataloaders=loader, **arguments)
        cases.append({"arguments": arguments, "lr": found.results["lr"],
                      "loss": found.results["loss"], "suggestion": found.suggestion()})
    write("lr_find.json", cases)


torch.set_num_threads(1)
plateau()
gan()
lr_find()
