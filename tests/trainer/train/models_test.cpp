#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/trainer/support/temporary.hpp"
#include "tests/trainer/train/made_tensors.hpp"
#include "trainer/core/error.hpp"
#include "trainer/models/mlp.hpp"
#include "trainer/models/resnet.hpp"
#include "trainer/train/tensors.hpp"

using namespace dtrain::train;
using test::contains;
using test::message_of;

namespace {

// torchvision.models.resnet18().state_dict(), written down from its rules.
std::map<std::string, std::vector<std::int64_t>> torchvision_resnet18() {
  std::map<std::string, std::vector<std::int64_t>> expected;
  const auto batch_norm = [&](const std::string& name, std::int64_t channels) {
    for (const char* tensor : {"weight", "bias", "running_mean", "running_var"}) {
      expected[name + "." + tensor] = {channels};
    }
    expected[name + ".num_batches_tracked"] = {};
  };
  expected["conv1.weight"] = {64, 3, 7, 7};
  batch_norm("bn1", 64);
  std::int64_t inputs = 64;
  for (int layer = 1; layer <= 4; ++layer) {
    const std::int64_t outputs = std::int64_t{32} << layer;
    for (int block = 0; block < 2; ++block) {
      const std::string name = "layer" + std::to_string(layer) + "." + std::to_string(block) + ".";
      expected[name + "conv1.weight"] = {outputs, inputs, 3, 3};
      batch_norm(name + "bn1", outputs);
      expected[name + "conv2.weight"] = {outputs, outputs, 3, 3};
      batch_norm(name + "bn2", outputs);
      if (layer > 1 && block == 0) {
        expected[name + "downsample.0.weight"] = {outputs, inputs, 1, 1};
        batch_norm(name + "downsample.1", outputs);
      }
      inputs = outputs;
    }
  }
  expected["fc.weight"] = {1000, 512};
  expected["fc.bias"] = {1000};
  return expected;
}

}  // namespace

TEST_CASE("ResNet-18 has torchvision's 122 names and shapes") {
  const ResNet model = resnet18();
  std::map<std::string, std::vector<std::int64_t>> found;
  for (const auto& [name, tensor] : state_dict(*model)) found[name] = tensor.sizes().vec();
  const auto expected = torchvision_resnet18();
  CHECK(expected.size() == 122);
  CHECK(found == expected);
  std::int64_t numbers = 0;
  for (const at::Tensor& parameter : model->parameters()) numbers += parameter.numel();
  CHECK(numbers == 11'689'512);  // as torchvision's page says
}

TEST_CASE("ResNet-18 computes, and its first convolution can be replaced") {
  ResNet model = resnet18(10);
  model->eval();
  const at::NoGradGuard no_grad;
  CHECK(model->forward(at::zeros({2, 3, 64, 64})).sizes() == at::IntArrayRef({2, 10}));
  model->replace_conv1(resnet_conv1(1));
  CHECK(state_dict(*model).at("conv1.weight").sizes() == at::IntArrayRef({64, 1, 7, 7}));
  CHECK(state_dict(*model).size() == 122);
  CHECK(model->forward(at::zeros({2, 1, 28, 28})).sizes() == at::IntArrayRef({2, 10}));
}

TEST_CASE("a batch with one value a channel is no batch to train batch norm with") {
  ResNet model = resnet18(10);
  model->replace_conv1(resnet_conv1(1));
  const at::NoGradGuard no_grad;
  // layer4 sees one pixel of an image of 28.
  const std::string message = message_of<Error>([&] { model->forward(at::ones({1, 1, 28, 28})); });
  CHECK(contains(message,
                 "Expected more than 1 value per channel when training, got input size "
                 "[1, 512, 1, 1]"));
  CHECK(contains(message, "drop_last"));
  for (const auto& [name, tensor] : state_dict(*model)) {
    CAPTURE(name);
    CHECK(tensor.isfinite().all().item<bool>());
  }
  model->forward(at::ones({2, 1, 28, 28}));
  model->forward(at::ones({1, 1, 64, 64}));  // two by two pixels
  model->eval();
  CHECK(model->forward(at::ones({1, 1, 28, 28})).isfinite().all().item<bool>());
}

TEST_CASE("ResNet-18's convolutions begin as torchvision's: normal, by what goes out") {
  const ResNet model = resnet18();
  const TensorMap tensors = state_dict(*model);
  // kaiming_normal_, fan_out, relu: std = sqrt(2 / (512 * 9)).
  CHECK(tensors.at("layer4.1.conv2.weight").std().item<double>() ==
        doctest::Approx(std::sqrt(2.0 / (512 * 9))).epsilon(0.01));
  CHECK(tensors.at("layer4.1.bn2.weight").eq(1).all().item<bool>());
}

// Against torchvision: tests/golden/resnet/make.py.
TEST_CASE("ResNet-50 has torchvision's names and shapes") {
  std::ostringstream found;
  const ResNet model = resnet50();
  for (const auto& [name, tensor] : state_dict(*model)) {
    found << name << " [";
    for (std::int64_t i = 0; i < tensor.dim(); ++i) found << (i > 0 ? ", " : "") << tensor.size(i);
    found << "]\n";
  }
  std::ostringstream expected;
  expected << std::ifstream(test::golden_folder() / "resnet/resnet50.txt").rdbuf();
  CHECK(found.str().size() > 10000);
  CHECK(found.str() == expected.str());
  const auto numbers = [](const ResNet& net) {
    std::int64_t sum = 0;
    for (const at::Tensor& parameter : net->parameters()) sum += parameter.numel();
    return sum;
  };
  CHECK(numbers(model) == 25'557'032);  // as torchvision's page says
  // kaiming_normal_, fan_out, relu.
  CHECK(state_dict(*model).at("layer4.2.conv3.weight").std().item<double>() ==
        doctest::Approx(std::sqrt(2.0 / 2048)).epsilon(0.01));
}

TEST_CASE("ResNets compute what torchvision's do, in evaluation and in training") {
  const TensorMap golden = test::torchvision_golden();
  const at::NoGradGuard no_grad;
  const at::Tensor images = test::made_tensor(1, {2, 3, 64, 64}, -2, 2);
  std::vector<std::pair<std::string, ResNet>> models{{"resnet18", resnet18(10)},
                                                     {"resnet50", resnet50(10)}};
  for (auto& [which, model] : models) {
    CAPTURE(which);
    std::int64_t number = -1;
    for (auto& [name, tensor] : state_dict(*model)) {
      ++number;
      if (name.ends_with("num_batches_tracked")) continue;
      if (tensor.dim() > 1) {
        const double reach = std::sqrt(6.0 / static_cast<double>(tensor[0].numel()));
        tensor.copy_(test::made_tensor(number, tensor.sizes(), -reach, reach));
      } else if (name.ends_with("running_var") || name.ends_with("weight")) {
        tensor.copy_(test::made_tensor(number, tensor.sizes(), 0.5, 1.5));
      } else {
        tensor.copy_(test::made_tensor(number, tensor.sizes(), -0.1, 0.1));
      }
    }
    const auto apart = [](const at::Tensor& one, const at::Tensor& other) {
      return (one - other).abs().max().item<double>() / other.abs().max().item<double>();
    };
    model->eval();
    CHECK(apart(model->forward(images), golden.at(which + ".eval")) <= 1e-4);
    model->train();
    // Statistics of two images: through so many layers of them an input that is another by its last
    // digits gives an output that is another by 2 %, and so does another processor's arithmetic.
    const at::Tensor output = model->forward(images);
    const double noise = apart(model->forward(images * (1 + 1e-6)), output);
    CHECK(apart(output, golden.at(which + ".train")) <= std::max(1e-4, 4 * noise));
  }
}

TEST_CASE("the perceptron flattens its input") {
  Mlp model(MlpOptions{.inputs = 6, .hidden = {5, 4}, .classes = 3});
  CHECK(model->forward(at::zeros({2, 1, 2, 3})).sizes() == at::IntArrayRef({2, 3}));
  std::set<std::string> names;
  for (const auto& [name, tensor] : state_dict(*model)) names.insert(name);
  CHECK(names == std::set<std::string>{"layers.0.bias", "layers.0.weight", "layers.2.bias",
                                       "layers.2.weight", "layers.4.bias", "layers.4.weight"});
}
