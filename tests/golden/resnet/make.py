"""Writes resnet.safetensors: what torchvision's ResNets compute with weights made by a rule, and
what v2.MixUp and v2.CutMix make of a batch.

With torchvision 0.26: PYTHONPATH=FOLDER_OF_TORCHVISION:.deps/libtorch python3 make.py
"""

import json
import struct
from pathlib import Path

import torch
import torchvision
from torchvision.transforms import v2


def made(number, shape, low, high):
    """The values of tensor `number`: the same integers in any language."""
    count = torch.Size(shape).numel()
    whole = (torch.arange(count) * 40503 + 7919 * number) % 65536
    return (whole.float() / 65536 * (high - low) + low).reshape(shape)


def fill(model):
    for number, (name, tensor) in enumerate(sorted(model.state_dict().items())):
        if name.endswith("num_batches_tracked"):
            continue
        if tensor.dim() > 1:
            reach = (6 / tensor[0].numel()) ** 0.5
            tensor.copy_(made(number, tensor.shape, -reach, reach))
        elif name.endswith(("running_var", "weight")):
            tensor.copy_(made(number, tensor.shape, 0.5, 1.5))
        else:
            tensor.copy_(made(number, tensor.shape, -0.1, 0.1))


tensors, names = {}, {}
images = made(1, (2, 3, 64, 64), -2, 2)
for depth in (18, 50):
    model = getattr(torchvision.models, f"resnet{depth}")(num_classes=10)
    with torch.no_grad():
        fill(model)
        tensors[f"resnet{depth}.eval"] = model.eval()(images)
        tensors[f"resnet{depth}.train"] = model.train()(images)
    names[depth] = [f"{name} {list(tensor.shape)}" for name, tensor in
                    sorted(torchvision.models.get_model(f"resnet{depth}").state_dict().items())]
Path(__file__).with_name("resnet50.txt").write_text("\n".join(names[50]) + "\n")

batch, labels = made(3, (4, 3, 10, 14), 0, 1), torch.tensor([2, 0, 1, 2])
tensors["mixup.images"], tensors["mixup.labels"] = (
    lambda mix: (mix.transform(batch, {"labels": labels, "batch_size": 4, "lam": 0.3}),
                 mix.transform(labels, {"labels": labels, "batch_size": 4, "lam": 0.3})))(
    v2.MixUp(num_classes=3))


class FixedCutMix(v2.CutMix):
    """With lambda 0.6, around column 11 and row 2."""

    class Fixed:
        @staticmethod
        def sample(_):
            return 0.6

    def make_params(self, flat_inputs):
        self._dist, drawn = self.Fixed, iter([torch.tensor([11]), torch.tensor([2])])
        randint, torch.randint = torch.randint, lambda *_, **__: next(drawn)
        try:
            return super().make_params(flat_inputs)
        finally:
            torch.randint = randint


tensors["cutmix.images"], tensors["cutmix.labels"] = FixedCutMix(num_classes=3)(batch, labels)

header, data = {}, b""
for name, tensor in sorted(tensors.items()):
    values = tensor.flatten().tolist()
    begin = len(data)
    data += struct.pack(f"<{len(values)}f", *values)
    header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [begin, len(data)]}
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
Path(__file__).with_name("resnet.safetensors").write_bytes(
    struct.pack("<Q", len(text)) + text + data)
