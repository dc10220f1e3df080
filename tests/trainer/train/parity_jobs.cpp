// Two ranks beside Python's DistributedDataParallel: see python_ddp_golden.py.
#include <ATen/ATen.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>
#include <stdexcept>

#include "tests/trainer/train/jobs.hpp"
#include "trainer/train/batch_norm.hpp"
#include "trainer/train/ddp.hpp"
#include "trainer/train/gradients.hpp"
#include "trainer/train/optimizer.hpp"
#include "trainer/train/tensors.hpp"

namespace dtrain::train::test {
namespace {

constexpr int kPairSteps = 50;
constexpr std::int64_t kBatch = 6;
constexpr double kRelative = 1e-4;    // of losses and gradient norms
constexpr double kWeights = 2e-5;     // of updated weights, absolute; a step moves them by 1e-2
constexpr double kFreeLosses = 1e-5;  // of the first three losses of a training by itself

class Net : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& images) {
    at::Tensor x = at::relu(bn1_->forward(conv1_->forward(images)));
    x = at::relu(bn2_->forward(conv2_->forward(x)));
    return fc_->forward(x.mean({2, 3}));
  }

 private:
  using ConvOptions = torch::nn::Conv2dOptions;
  torch::nn::Conv2d conv1_{
      register_module("conv1", torch::nn::Conv2d(ConvOptions(1, 4, 3).padding(1).bias(false)))};
  BatchNorm bn1_{register_module("bn1", BatchNorm(4))};
  torch::nn::Conv2d conv2_{register_module(
      "conv2", torch::nn::Conv2d(ConvOptions(4, 6, 3).stride(2).padding(1).bias(false)))};
  BatchNorm bn2_{register_module("bn2", BatchNorm(6))};
  torch::nn::Linear fc_{register_module("fc", torch::nn::Linear(6, 3))};
};

void near(double mine, double theirs, double relative, const std::string& what) {
  if (std::abs(mine - theirs) <= relative * std::abs(theirs)) return;
  char text[200];
  std::snprintf(text, sizeof text, "%s: %.9g, Python has %.9g", what.c_str(), mine, theirs);
  throw std::runtime_error(text);
}

// The tensors below a prefix.
TensorMap below(const TensorMap& golden, const std::string& prefix) {
  TensorMap found;
  for (auto at = golden.lower_bound(prefix); at != golden.end() && at->first.starts_with(prefix);
       ++at) {
    found.emplace(at->first.substr(prefix.size()), at->second);
  }
  return found;
}

std::string at_step(int step) {
  char text[16];
  std::snprintf(text, sizeof text, "s%02d.", step);
  return text;
}

int parity(Context& context, const std::filesystem::path& /*folder*/) {
  const TensorMap golden = read_tensors(std::getenv("TEST_GOLDEN"));
  const auto run = [&](bool free) {
    const auto net = std::make_shared<Net>();
    net->to(here());
    load_state_dict(*net, below(golden, "s00.model."));
    Ddp ddp(net, context);
    AdamW optimizer(named_parameters(*net), {.lr = 1e-2, .weight_decay = 0.1});
    for (int step = 0; step < (free ? 3 : kPairSteps); ++step) {
      const std::string s = at_step(step);
      if (!free) {
        load_state_dict(*net, below(golden, s + "model."));
        std::map<std::string, at::Tensor> state;
        for (const NamedParameter& p : optimizer.parameters()) {
          state[p.name + "/step"] = at::scalar_tensor(step, at::kFloat);
          for (const char* key : {"exp_avg", "exp_avg_sq"}) {
            state[p.name + "/" + key] = golden.at(s + key + "." + p.name);
          }
        }
        optimizer.load_state(state);
      }
      const at::Tensor index = at::arange(kBatch * 36, at::kDouble) +
                               static_cast<double>((step * 2 + context.rank()) * 1000);
      const at::Tensor images = (at::sin(index * 0.37) + at::cos(index * 0.11))
                                    .to(at::kFloat)
                                    .view({kBatch, 1, 6, 6})
                                    .to(here());
      const at::Tensor labels =
          (at::arange(kBatch) + static_cast<std::int64_t>(step + context.rank()))
              .remainder(3)
              .to(here());
      const at::Tensor loss = at::cross_entropy_loss(ddp(images), labels);
      loss.backward();
      near(loss.item<double>(), golden.at(s + "loss")[context.rank()].item<double>(),
           free ? kFreeLosses : kRelative, s + "loss");
      if (!free) {
        near(gradient_norm(optimizer.parameters()), golden.at(s + "grad_norm").item<double>(),
             kRelative, s + "grad_norm");
      }
      optimizer.step();
      optimizer.zero_grad();
      if (free || !context.is_first()) continue;  // buffers of other ranks are their own
      const TensorMap expected = below(golden, at_step(step + 1) + "model.");
      for (const auto& [name, tensor] : state_dict(*net)) {
        const double off = (tensor.cpu().to(at::kDouble) - expected.at(name).to(at::kDouble))
                               .abs()
                               .max()
                               .item<double>();
        if (off > kWeights) {
          throw std::runtime_error(s + name + " is off by " + std::to_string(off));
        }
      }
    }
  };
  run(false);
  run(true);
  return 0;
}

}  // namespace

const std::map<std::string, Job>& parity_jobs() {
  static const std::map<std::string, Job> jobs{{"parity", parity}};
  return jobs;
}

}  // namespace dtrain::train::test
