#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "trainer/data/idx.hpp"

// A model and data that both a rank and the test that started it can make.
namespace dtrain::train::test {

// Where models, examples and images are made: the CPU, but in a rank on a GPU there.
c10::Device& here();

struct SmallOptions {
  std::int64_t hidden = 16;
  bool batch_norm = false;
  bool dropout = false;
  bool extra_layer = false;  // which forward does not use
};

class SmallModel : public torch::nn::Module {
 public:
  explicit SmallModel(const SmallOptions& options);
  at::Tensor forward(const at::Tensor& inputs);  // [batch, 8] -> [batch, 3]

 private:
  struct Layers;
  std::shared_ptr<Layers> layers_;
};

std::shared_ptr<SmallModel> make_small_model(std::uint64_t seed, const SmallOptions& options = {});

struct Examples {
  at::Tensor inputs;  // [24, 8]
  at::Tensor labels;  // [24]
};
Examples make_examples(int number);

// Random 2x4 images with labels below 3.
std::shared_ptr<const LabelledImages> make_images(std::int64_t count);

// "NAME" -> gradient, for those that have one.
std::map<std::string, at::Tensor> gradients_of(const torch::nn::Module& module);

}  // namespace dtrain::train::test
