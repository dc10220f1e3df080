"""Writes transforms.safetensors: small images, and what torchvision makes of them.

With torchvision 0.26: PYTHONPATH=FOLDER_OF_TORCHVISION:.deps/libtorch python3 make.py
"""

import json
import struct
from pathlib import Path

import torch
import torchvision.transforms.v2 as v2
import torchvision.transforms.v2.functional as F
from torchvision.transforms import InterpolationMode

torch.manual_seed(0)
tensors = {}


def picture(channels, rows, columns):
    """Waves and noise: values and neighbours of all kinds."""
    y = torch.arange(rows).view(1, -1, 1)
    x = torch.arange(columns).view(1, 1, -1)
    c = torch.arange(channels).view(-1, 1, 1)
    waves = 128 + 90 * torch.sin(0.21 * x + 0.6 * c) * torch.cos(0.17 * y - 0.9 * c)
    return (waves + 25 * torch.randn(channels, rows, columns)).clamp(0, 255).to(torch.uint8)


image, grey = picture(3, 37, 53), picture(1, 31, 26)
tensors |= {"image": image, "grey": grey}
# name: resize to, then the middle.
for name, source, size, crop in [("down", image, 20, 20), ("crop", image, 24, (21, 30)),
                                 ("odd", image, 33, (30, 28)), ("up", image, 64, (64, 64)),
                                 ("same", image, 37, (34, 50)), ("grey", grey, 15, 14)]:
    whole = v2.Compose([v2.Resize(size, antialias=True), v2.CenterCrop(crop)])
    tensors["resize." + name] = whole(source)
    pillow = F.pil_to_tensor(whole(F.to_pil_image(source)))
    assert (pillow.int() - tensors["resize." + name].int()).abs().max() <= 1
# The part at row, column of rows x columns, as RandomResizedCrop scales it.
for part in [(3, 5, 30, 41), (0, 0, 37, 53), (20, 10, 7, 9)]:
    name = "part." + ".".join(map(str, part))
    tensors[name] = F.resized_crop(image, *part, [16, 12], antialias=True)

for factor in (0.0, 0.6, 1.0, 1.7):
    for name in ("brightness", "contrast", "saturation", "sharpness"):
        tensors[f"{name}.{factor}"] = getattr(F, "adjust_" + name)(image, factor)
        tensors[f"{name}.grey.{factor}"] = getattr(F, "adjust_" + name)(grey, factor)
for turn in (-0.5, -0.2, 0.0, 0.1, 0.37):
    tensors[f"hue.{turn}"] = F.adjust_hue(image, turn)

policy = v2.RandAugment()
for op, (name, (magnitudes, signed)) in enumerate(policy._AUGMENTATION_SPACE.items()):
    steps = magnitudes(31, 37, 53)
    for magnitude in (9, 30):
        for sign in (1, -1) if signed else (1,):
            value = sign * float(steps[magnitude]) if steps is not None else 0.0
            tensors[f"augment.{op}.{magnitude}.{sign}"] = policy._apply_image_or_video_transform(
                image, name, value, InterpolationMode.NEAREST, {v2.RandAugment: None, "others": None})

header, data = {}, b""
for name, tensor in sorted(tensors.items()):
    begin = len(data)
    data += bytes(tensor.flatten().tolist())
    header[name] = {"dtype": "U8", "shape": list(tensor.shape), "data_offsets": [begin, len(data)]}
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
Path(__file__).with_name("transforms.safetensors").write_bytes(
    struct.pack("<Q", len(text)) + text + data)
