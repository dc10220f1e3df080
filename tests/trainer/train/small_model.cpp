#include "tests/trainer/train/small_model.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

namespace dtrain::train::test {

c10::Device& here() {
  static c10::Device device(c10::kCPU);
  return device;
}

struct SmallModel::Layers {
  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
  torch::nn::Linear last{nullptr};
};

SmallModel::SmallModel(const SmallOptions& options) : layers_(std::make_shared<Layers>()) {
  layers_->first = register_module("first", torch::nn::Linear(8, options.hidden));
  if (options.batch_norm) {
    layers_->norm = register_module("norm", torch::nn::BatchNorm1d(options.hidden));
  }
  if (options.dropout) layers_->dropout = register_module("dropout", torch::nn::Dropout(0.3));
  layers_->last = register_module("last", torch::nn::Linear(options.hidden, 3));
  if (options.extra_layer) register_module("extra", torch::nn::Linear(4, 4));
}

at::Tensor SmallModel::forward(const at::Tensor& inputs) {
  at::Tensor x = layers_->first->forward(inputs);
  if (layers_->norm) x = layers_->norm->forward(x);
  x = at::relu(x);
  if (layers_->dropout) x = layers_->dropout->forward(x);
  return layers_->last->forward(x);
}

std::shared_ptr<SmallModel> make_small_model(std::uint64_t seed, const SmallOptions& options) {
  // The default generator is left as it was.
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor before = generator.get_state();
  at::manual_seed(seed);
  auto model = std::make_shared<SmallModel>(options);
  generator.set_state(before);
  model->to(here());
  return model;
}

Examples make_examples(int number) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(number));
  return {at::randn({24, 8}, generator).to(here()),
          at::randint(0, 3, {24}, generator, at::TensorOptions().dtype(at::kLong)).to(here())};
}

std::shared_ptr<const LabelledImages> make_images(std::int64_t count) {
  auto data = std::make_shared<LabelledImages>();
  data->source = "made up";
  data->images.count = count;
  data->images.rows = 2;
  data->images.columns = 4;
  std::uint32_t state = 1;
  const auto random = [&state] { return state = state * 1664525U + 1013904223U, state >> 24; };
  for (std::int64_t i = 0; i < count * 8; ++i) {
    data->images.pixels.push_back(static_cast<std::uint8_t>(random()));
  }
  for (std::int64_t i = 0; i < count; ++i) {
    data->labels.push_back(static_cast<std::uint8_t>(random() % 3));
  }
  return data;
}

std::map<std::string, at::Tensor> gradients_of(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> gradients;
  for (const auto& item : module.named_parameters()) {
    if (item.value().grad().defined()) gradients.emplace(item.key(), item.value().grad().clone());
  }
  return gradients;
}

}  // namespace dtrain::train::test
