"""Linear regression with DistributedDataParallel, as it would run under torchrun.

Nothing here knows dtrain: init_process_group reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    # One sum over all ranks, to see that they are together: 1 + 2 + ... + world.
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    print(f"rank {rank} of {world} on node {os.environ.get('GROUP_RANK', '0')}: "
          f"sum {total.item():.0f}", flush=True)

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    target = torch.arange(8.0).unsqueeze(1)
    torch.manual_seed(100 + rank)
    for step in range(1, args.steps + 1):
        inputs = torch.randn(64, 8)
        loss = torch.nn.functional.mse_loss(model(inputs), inputs @ target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
