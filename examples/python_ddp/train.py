"""Linear regression with DistributedDataParallel, as it would run under torchrun.

init_process_group reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. The module dtrain takes metrics and
checkpoints, wherever the script runs: under dtrain, torchrun, or alone with both set.
"""

import argparse
import tempfile

import dtrain
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--storage", help="where checkpoints go without dtrain")
    args = parser.parse_args()
    dtrain.configure(storage_path=args.storage)

    dist.init_process_group("gloo")
    world = dtrain.world()

    # One sum over all ranks, to see that they are together: 1 + 2 + ... + world.
    total = torch.tensor([world.rank + 1.0])
    dist.all_reduce(total)
    print(f"rank {world.rank} of {world.size} on node {world.node_rank}: sum {total.item():.0f}", flush=True)

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    target = torch.arange(8.0).unsqueeze(1)

    start = 0
    folder = dtrain.resume_path()
    if folder:
        state = torch.load(folder / "state.pt", weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]
        print(f"rank {world.rank} goes on after step {start}", flush=True)

    for step in range(start + 1, args.steps + 1):
        inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(1000 * step + world.rank))
        loss = torch.nn.functional.mse_loss(model(inputs), inputs @ target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dtrain.progress(step, total=args.steps)
        if step % 5 == 0:
            checkpoint = None
            if world.rank == 0:
                checkpoint = tempfile.mkdtemp()
                torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(),
                            "step": step}, f"{checkpoint}/state.pt")
            dtrain.report({"loss": loss.item()}, step, checkpoint)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
