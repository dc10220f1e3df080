// Ranks that share batch norm's statistics, a loss scale, and objects.
#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>

#include <cstdlib>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tests/trainer/support/require.hpp"
#include "tests/trainer/train/jobs.hpp"
#include "tests/trainer/train/small_model.hpp"
#include "trainer/core/error.hpp"
#include "trainer/train/batch_norm.hpp"
#include "trainer/train/ddp.hpp"
#include "trainer/train/gradients.hpp"
#include "trainer/train/objects.hpp"
#include "trainer/train/precision.hpp"

namespace dtrain::train::test {
namespace {

class Normed : public torch::nn::Module {
 public:
  Normed() : norm(register_module("norm", BatchNorm(4))) {}
  at::Tensor forward(const at::Tensor& x) { return norm->forward(x); }
  BatchNorm norm;
};

// Over ranks with different numbers of samples, as torch's batch norm over all samples.
int sync_norm(Context& context, const std::filesystem::path& /*folder*/) {
  at::manual_seed(3);
  for (const std::vector<std::int64_t>& rest :
       {std::vector<std::int64_t>{}, std::vector<std::int64_t>{3, 2}}) {
    std::vector<std::int64_t> shape{12, 4};
    shape.insert(shape.end(), rest.begin(), rest.end());
    const at::Tensor all = at::randn(shape) * 3 + 1;
    const at::Tensor weights = at::randn(shape);  // of the loss
    const auto rank = static_cast<std::int64_t>(context.rank());
    const auto world = static_cast<std::int64_t>(context.world_size());
    // 12 samples: all but the last have rank + 1 each.
    const std::int64_t begin = rank * (rank + 1) / 2;
    const std::int64_t size = rank + 1 == world ? 12 - begin : rank + 1;

    Normed model;
    sync_batch_norm(model, context);
    at::Tensor mine = all.narrow(0, begin, size).clone().set_requires_grad(true);
    (model.forward(mine) * weights.narrow(0, begin, size)).sum().backward();

    at::Tensor joined = all.clone().set_requires_grad(true);
    at::Tensor weight = at::ones({4}).set_requires_grad(true);
    at::Tensor bias = at::zeros({4}).set_requires_grad(true);
    at::Tensor mean = at::zeros({4});
    at::Tensor variance = at::ones({4});
    const at::Tensor expected =
        at::batch_norm(joined, weight, bias, mean, variance, true, 0.1, 1e-5, false);
    (expected * weights).sum().backward();

    const auto near = [](const at::Tensor& a, const at::Tensor& b, const char* what) {
      require(a.allclose(b, 1e-4, 1e-5), std::string("batch norm: ") + what);
    };
    near(mine.grad(), joined.grad().narrow(0, begin, size), "gradient of the input");
    at::Tensor weight_gradient = model.norm->weight.grad().clone();
    at::Tensor bias_gradient = model.norm->bias.grad().clone();
    context.all_reduce_sum(weight_gradient);
    context.all_reduce_sum(bias_gradient);
    near(weight_gradient, weight.grad(), "gradient of the weight");
    near(bias_gradient, bias.grad(), "gradient of the bias");
    near(model.norm->running_mean, mean, "running mean");
    near(model.norm->running_var, variance, "running variance");
    require(model.norm->num_batches_tracked.item<std::int64_t>() == 1, "one batch");
    model.eval();
    near(model.forward(mine),
         at::batch_norm(mine, weight, bias, mean, variance, false, 0.1, 1e-5, false), "evaluation");
  }

  // One value a channel of all ranks together has no variance: every rank is told.
  Normed model;
  sync_batch_norm(model, context);
  const std::int64_t samples = context.rank() + 1 == context.world_size() ? 1 : 0;
  std::string told;
  try {
    model.forward(at::ones({samples, 4}));
  } catch (const Error& error) {
    told = error.what();
  }
  require(told.find("Expected more than 1 value per channel") != std::string::npos, "one value");
  require(model.norm->running_mean.equal(at::zeros({4})), "the running mean stays");
  require(model.norm->running_var.equal(at::ones({4})), "the running variance stays");
  return 0;
}

// Values around 10,000 and 20,000 that differ by less than one: equal with PyTorch's batch norm in
// float64 (python_batch_norm_golden.py), with uneven shares and one rank without any.
int sync_norm_stable(Context& context, const std::filesystem::path& /*folder*/) {
  const nlohmann::json golden =
      nlohmann::json::parse(std::ifstream(std::getenv("TEST_BATCH_NORM_GOLDEN")));
  const auto expected = [&](const char* name) {
    const auto values = golden.at(name).get<std::vector<double>>();
    return at::tensor(values, at::kDouble);
  };
  constexpr std::int64_t kRows = 12;
  at::Tensor all = at::empty({kRows, 2});
  at::Tensor factor = at::empty({kRows, 2});
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t channel = 0; channel < 2; ++channel) {
      all[row][channel] = 1e4 * static_cast<double>(channel + 1) +
                          0.0625 * static_cast<double>((7 * row + 3 * channel) % 11);
      factor[row][channel] = static_cast<double>((5 * row + channel) % 7) - 3;
    }
  }
  const std::vector<std::int64_t> begins{0, 5, 5, 12};
  const auto rank = static_cast<std::size_t>(context.rank());
  const std::int64_t begin = begins[rank];
  const std::int64_t size = begins[rank + 1] - begin;

  BatchNorm norm(2);
  {
    const at::NoGradGuard no_grad;
    norm->weight.copy_(at::tensor({1.5F, -0.5F}));
    norm->bias.copy_(at::tensor({0.25F, 2.0F}));
    norm->running_mean.zero_();
  }
  norm->synchronize(&context);
  at::Tensor mine = all.narrow(0, begin, size).clone().set_requires_grad(true);
  const at::Tensor output = norm->forward(mine);
  (output * factor.narrow(0, begin, size)).sum().backward();
  at::Tensor weight = norm->weight.grad().clone();
  at::Tensor bias = norm->bias.grad().clone();
  context.all_reduce_sum(weight);
  context.all_reduce_sum(bias);
  const auto near = [](const at::Tensor& is, const at::Tensor& wanted, const char* what) {
    require(is.to(at::kDouble).allclose(wanted, 2e-6, 2e-6), std::string("stable: ") + what);
  };
  near(output, expected("output").view({kRows, 2}).narrow(0, begin, size), "output");
  near(mine.grad(), expected("input_grad").view({kRows, 2}).narrow(0, begin, size),
       "gradient of the input");
  near(weight, expected("weight_grad"), "gradient of the weight");
  near(bias, expected("bias_grad"), "gradient of the bias");
  near(norm->running_mean, expected("running_mean"), "running mean");
  near(norm->running_var, expected("running_var"), "running variance");
  return 0;
}

// One rank's infinite gradient is every rank's left out step.
int scaler(Context& context, const std::filesystem::path& /*folder*/) {
  auto model = make_small_model(1);
  Sgd optimizer(named_parameters(*model), {.lr = 0.1});
  GradScaler scaler(context, {.init_scale = 1024, .growth_interval = 2});
  const auto backward = [&](bool breaks) {
    const Examples all = make_examples(0);
    scaler.scale(at::cross_entropy_loss(model->forward(all.inputs), all.labels)).backward();
    if (breaks)
      optimizer.parameters()[0].tensor.grad().view({-1})[0] =
          std::numeric_limits<float>::infinity();
  };
  backward(false);
  const at::Tensor scaled = optimizer.parameters()[0].tensor.grad().clone();
  scaler.unscale(optimizer);
  require(optimizer.parameters()[0].tensor.grad().allclose(scaled / 1024), "divided again");
  require(scaler.step(optimizer), "a good step is taken");
  optimizer.zero_grad();
  const at::Tensor before = optimizer.parameters()[0].tensor.detach().clone();
  backward(context.rank() == 1);
  require(!scaler.step(optimizer), "no rank takes a step of which one gradient is infinite");
  optimizer.zero_grad();
  require(optimizer.parameters()[0].tensor.equal(before), "weights stay");
  require(scaler.scale() == 512, "the scale falls");
  for (int i = 0; i < 2; ++i) {
    backward(false);
    require(scaler.step(optimizer), "and on");
    optimizer.zero_grad();
  }
  require(scaler.scale() == 1024, "the scale grows");
  GradScaler other(context, {});
  other.load_state(scaler.state());
  require(other.scale() == 1024 && other.skipped() == 1, "its state");
  return 0;
}

int objects(Context& context, const std::filesystem::path& /*folder*/) {
  const int rank = context.rank();
  const nlohmann::json mine{{"rank", rank},
                            {"text", std::string(static_cast<std::size_t>(rank), 'x')}};
  const std::vector<nlohmann::json> all = all_gather_objects(context, mine);
  require(all.size() == static_cast<std::size_t>(context.world_size()), "one of each");
  for (std::size_t i = 0; i < all.size(); ++i) {
    require(all[i]["rank"] == i && all[i]["text"].get<std::string>().size() == i, "by rank");
  }
  require(broadcast_object(context, mine, 1)["rank"] == 1, "from rank 1");
  require(context.all_gather(std::string()).size() == all.size(), "no text at all");
  return 0;
}

// Three ranks over Gloo, where the layout of buckets decides the last bits: a training that begins
// anew after some steps, with the layout that was kept, ends as one that went on.
int kept_layout(Context& context, const std::filesystem::path& /*folder*/) {
  const DdpOptions options{.bucket_bytes = 700, .first_bucket_bytes = 256, .tune_buckets = false};
  const auto train = [&](Ddp<SmallModel>& ddp, int from, int to) {
    Sgd optimizer(named_parameters(ddp.module()), {.lr = 0.1});
    for (int step = from; step < to; ++step) {
      const Examples mine = share_of(context, make_examples(step));
      at::cross_entropy_loss(ddp(mine.inputs), mine.labels).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
  };
  for (const int stop : {1, 3}) {
    Ddp whole(make_small_model(1), context, options);
    train(whole, 0, 6);
    Ddp first(make_small_model(1), context, options);
    train(first, 0, stop);
    const BucketLayout layout = first.layout_to_keep();
    require(layout.size() > 1, "several buckets are kept");
    auto model = make_small_model(1);
    {
      const at::NoGradGuard no_grad;
      for (const auto& item : model->named_parameters()) {
        item.value().copy_(first.module().named_parameters()[item.key()]);
      }
    }
    Ddp second(model, context, options);
    second.use_layout(layout);
    train(second, stop, 6);
    for (const auto& item : whole.module().named_parameters()) {
      require(item.value().equal(model->named_parameters()[item.key()]), item.key() + " went on");
    }
  }
  return 0;
}

}  // namespace

const std::map<std::string, Job>& shared_jobs() {
  static const std::map<std::string, Job> jobs{{"sync_norm", sync_norm},
                                               {"sync_norm_stable", sync_norm_stable},
                                               {"scaler", scaler},
                                               {"objects", objects},
                                               {"kept_layout", kept_layout}};
  return jobs;
}

}  // namespace dtrain::train::test
