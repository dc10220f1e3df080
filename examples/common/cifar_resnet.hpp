#pragma once

#include "trainer/models/resnet.hpp"

// ResNet-18 for pictures of 32 pixels: a small first convolution, and no halving behind it.
inline dtrain::train::ResNet small_resnet18(std::int64_t classes) {
  dtrain::train::ResNet model = dtrain::train::resnet18(classes);
  model->replace_conv1(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 64, /*kernel_size=*/3).padding(1).bias(false)));
  model->without_max_pool();
  return model;
}
