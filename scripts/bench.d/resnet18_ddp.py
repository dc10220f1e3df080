"""The peer of examples/fashion_mnist_resnet18 in Python: same model, data, batch and optimizer.

ResNet-18 is written out with torchvision's structure, since torchvision may be absent. As in
common PyTorch scripts: DistributedDataParallel and torch.optim.Adam with their defaults, or with
--fused the options that make PyTorch itself fastest here. The images are held as one normalized
float tensor and indexed by batch, which is faster than a DataLoader: the peer gets the best case.
Start it with torchrun.
"""

import argparse
import gzip
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WARM_UP_STEPS = 20


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet18(nn.Module):
    def __init__(self, channels, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(BasicBlock(64, 64, 1), BasicBlock(64, 64, 1))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, 2), BasicBlock(128, 128, 1))
        self.layer3 = nn.Sequential(BasicBlock(128, 256, 2), BasicBlock(256, 256, 1))
        self.layer4 = nn.Sequential(BasicBlock(256, 512, 2), BasicBlock(512, 512, 1))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512, classes)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def read_idx(path, header):
    with gzip.open(path) as file:
        return torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--limit", type=int, default=60000)
    parser.add_argument("--batch-size-per-worker", type=int, default=128)
    parser.add_argument("--fused", action="store_true")
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    pixels = read_idx(f"{args.data}/train-images-idx3-ubyte.gz", 16)
    images = pixels.view(-1, 1, 28, 28)[:args.limit].float().div_(255).sub_(0.5).div_(0.5)
    labels = read_idx(f"{args.data}/train-labels-idx1-ubyte.gz", 8)
    labels = labels[:args.limit].long()

    torch.manual_seed(0)
    model = ResNet18(1, 10)
    model = DistributedDataParallel(model, gradient_as_bucket_view=args.fused)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=args.fused or None)
    loss_function = nn.CrossEntropyLoss()

    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(images), generator=generator)[rank::world]
    seconds, counted, loss = 0.0, 0, None
    started = time.perf_counter()
    for step, index in enumerate(order.split(args.batch_size_per_worker), 1):
        x, y = images[index], labels[index]
        optimizer.zero_grad()
        loss = loss_function(model(x), y)
        loss.backward()
        optimizer.step()
        loss.item()
        now = time.perf_counter()
        if step > WARM_UP_STEPS:
            seconds += now - started
            counted += len(index)
        started = now
    if rank == 0:
        print(f"{counted * world / seconds:.1f} samples/s over {world} ranks, "
              f"loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
