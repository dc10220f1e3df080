"""The peer of examples/cifar10_vit in Python: same model, batch and optimizer, on made-up images.

VisionTransformer is written out with torchvision's structure, since torchvision may be absent: 12
layers, 8 heads, 384 wide, MLP 768, patch 4. AdamW with its defaults, fused with --fused;
--precision bf16 trains under torch.autocast; --compile by torch.compile. On a GPU where there is
one. Start it with torchrun.
"""

import argparse
import contextlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    def __init__(self, width=384, heads=8, mlp=768):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, mlp), nn.GELU(), nn.Linear(mlp, width))

    def forward(self, x):
        y = self.ln_1(x)
        x = x + self.self_attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class ViT(nn.Module):
    def __init__(self, width=384, layers=12, patch=4, image=32, classes=10):
        super().__init__()
        self.conv_proj = nn.Conv2d(3, width, patch, patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embedding = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width) * 0.02)
        self.layers = nn.Sequential(*[Block(width) for _ in range(layers)])
        self.ln = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.conv_proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], 1) + self.pos_embedding
        return self.head(self.ln(self.layers(x))[:, 0])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=int, default=1024)
    parser.add_argument("--batch-size-per-worker", type=int, default=32)
    parser.add_argument("--precision", choices=["32", "bf16"], default="32")
    parser.add_argument("--fused", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--warm-up-steps", type=int, default=20)
    args = parser.parse_args()

    gpu = torch.cuda.is_available()
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if gpu else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if gpu else torch.device("cpu")
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(args.limit, 3, 32, 32, generator=generator)
    labels = torch.randint(10, (args.limit,), generator=generator)

    torch.manual_seed(0)
    model = ViT().to(device)
    if args.compile:
        model = torch.compile(model)
    model = DistributedDataParallel(model, gradient_as_bucket_view=args.fused)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2,
                                  fused=args.fused or None)
    loss_function = nn.CrossEntropyLoss()
    precision = (torch.autocast(device.type, torch.bfloat16) if args.precision == "bf16"
                 else contextlib.nullcontext())

    order = torch.randperm(args.limit, generator=generator)[rank::world]
    seconds, counted = 0.0, 0
    started = time.perf_counter()
    for step, index in enumerate(order.split(args.batch_size_per_worker), 1):
        x, y = images[index].to(device), labels[index].to(device)
        optimizer.zero_grad()
        with precision:
            loss = loss_function(model(x), y)
        loss.backward()
        optimizer.step()
        loss.item()
        now = time.perf_counter()
        if step > args.warm_up_steps:
            seconds += now - started
            counted += len(index)
        started = now
    if rank == 0:
        print(f"{counted * world / seconds:.1f} samples/s over {world} ranks", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
