"""Writes vit.safetensors: a small VisionTransformer's weights, an input, and Python's output.

The module below is written from the description of torchvision's VisionTransformer, with its names
and with torch.nn.MultiheadAttention, so that the C++ one is compared with another implementation.
"""

import json
import struct
from pathlib import Path

import torch
from torch import nn

torch.manual_seed(0)
SIZE, PATCH, LAYERS, HEADS, HIDDEN, MLP, CLASSES = 8, 4, 2, 2, 8, 12, 3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1 = nn.LayerNorm(HIDDEN, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(HIDDEN, HEADS, batch_first=True)
        self.ln_2 = nn.LayerNorm(HIDDEN, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(HIDDEN, MLP), nn.GELU(), nn.Dropout(0),
                                 nn.Linear(MLP, HIDDEN), nn.Dropout(0))

    def forward(self, x):
        y = self.ln_1(x)
        x = x + self.self_attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class Vit(nn.Module):
    def __init__(self):
        super().__init__()
        patches = (SIZE // PATCH) ** 2
        self.class_token = nn.Parameter(torch.randn(1, 1, HIDDEN))
        self.conv_proj = nn.Conv2d(3, HIDDEN, PATCH, PATCH)
        self.encoder = nn.Module()
        self.encoder.pos_embedding = nn.Parameter(torch.randn(1, patches + 1, HIDDEN))
        self.encoder.layers = nn.Sequential()
        for i in range(LAYERS):
            self.encoder.layers.add_module(f"encoder_layer_{i}", Block())
        self.encoder.ln = nn.LayerNorm(HIDDEN, eps=1e-6)
        self.heads = nn.Sequential()
        self.heads.add_module("head", nn.Linear(HIDDEN, CLASSES))

    def forward(self, images):
        x = self.conv_proj(images).reshape(images.shape[0], HIDDEN, -1).permute(0, 2, 1)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], 1)
        x = self.encoder.ln(self.encoder.layers(x + self.encoder.pos_embedding))
        return self.heads(x[:, 0])


model = Vit()
with torch.no_grad():
    for p in model.parameters():
        p.add_(0.1 * torch.randn_like(p))
images = torch.randn(2, 3, SIZE, SIZE)
output = model(images)
output.square().sum().backward()
tensors = {"model." + k: v.detach() for k, v in model.state_dict().items()}
tensors |= {"gradient." + k: p.grad for k, p in model.named_parameters()}
tensors |= {"images": images, "output": output.detach()}
header, data = {}, b""
for name, tensor in sorted(tensors.items()):
    values = tensor.contiguous().flatten().tolist()
    begin = len(data)
    data += struct.pack(f"<{len(values)}f", *values)
    header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [begin, len(data)]}
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
Path(__file__).with_name("vit.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
