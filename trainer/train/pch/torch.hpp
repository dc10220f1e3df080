// Precompiled where files are compiled one by one: what every file here reads of LibTorch, and
// nothing of ours.
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <string>
#include <vector>
