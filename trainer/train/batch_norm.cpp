#include "trainer/train/batch_norm.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>

#include <sstream>
#include <tuple>
#include <utility>

#include "trainer/core/error.hpp"

namespace dtrain::train {
namespace {

// [channels] as it stands beside an input [batch, channels, …].
at::Tensor beside(const at::Tensor& values, const at::Tensor& input) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = -1;
  return values.view(shape);
}

std::vector<std::int64_t> all_but_channels(const at::Tensor& input) {
  std::vector<std::int64_t> axes{0};
  for (std::int64_t axis = 2; axis < input.dim(); ++axis) axes.push_back(axis);
  return axes;
}

// One value has no variance: the running one would be NaN from then on. `count`: of values a
// channel, over all ranks whose statistics these are.
void require_several(double count, const at::Tensor& input) {
  if (count > 1) return;
  std::ostringstream text;
  text << "batch norm: Expected more than 1 value per channel when training, got input size "
       << input.sizes()
       << ". A last batch of one sample makes this of layers whose images are one pixel: "
          "DataLoaderOptions::drop_last leaves it out";
  throw Error(text.str());
}

struct Statistics {
  at::Tensor mean;      // [channels]
  at::Tensor rest;      // what rounding the mean to `mean` has lost; not on a GPU
  at::Tensor inverse;   // 1 / sqrt(variance + eps)
  at::Tensor counts;    // of elements a channel, by rank: for ATen's kernels on a GPU
  double count = 0;     // over all ranks
  at::Tensor variance;  // biased; not on a GPU
};

// On the CPU: each rank's count, mean and sum of squared distances from it, which are joined in
// the order of the ranks (Chan, Golub and LeVeque 1983, "Algorithms for computing the sample
// variance"). Sums of squares minus squares of sums would lose what a large mean leaves over.
Statistics statistics_of(const at::Tensor& input, double eps, Context& context) {
  const std::int64_t channels = input.size(1);
  const std::int64_t count = input.numel() / channels;
  at::Tensor variance = at::zeros({channels}, at::kDouble);
  at::Tensor mean = at::zeros({channels}, at::kDouble);
  if (count > 0) {
    std::tie(variance, mean) =
        at::var_mean(input.to(at::kDouble), all_but_channels(input), /*correction=*/0);
  }
  const auto own = static_cast<double>(count);
  const std::vector<at::Tensor> all =
      context.all_gather(at::cat({mean, variance * own, at::full({1}, own, at::kDouble)}));
  Statistics result;
  mean = at::zeros({channels}, at::kDouble);
  at::Tensor squares = at::zeros({channels}, at::kDouble);
  for (const at::Tensor& rank : all) {
    const double more = rank[2 * channels].item<double>();
    if (more == 0) continue;
    const double before = std::exchange(result.count, result.count + more);
    const at::Tensor delta = rank.narrow(0, 0, channels) - mean;
    mean = mean + delta * (more / result.count);
    squares = squares + rank.narrow(0, channels, channels) +
              delta.square() * (before * more / result.count);
  }
  require_several(result.count, input);
  variance = squares / result.count;
  result.inverse = (variance + eps).rsqrt().to(at::kFloat);
  result.mean = mean.to(at::kFloat);
  result.rest = (mean - result.mean).to(at::kFloat);
  result.variance = variance.to(at::kFloat);
  return result;
}

// (input - mean), of which no digit is lost to the mean's rounding.
at::Tensor centred(const at::Tensor& input, const at::Tensor& mean, const at::Tensor& rest) {
  return (input - beside(mean, input)).sub_(beside(rest, input));
}

void move(at::Tensor& running, const at::Tensor& now, double momentum) {
  running.mul_(1 - momentum).add_(now, momentum);
}

// On a GPU, by ATen's kernels for this, which also move the running statistics.
Statistics statistics_on_gpu(const at::Tensor& input, double eps, double momentum,
                             at::Tensor& running_mean, at::Tensor& running_var, Context& context) {
  const auto [mean, inverse] = at::batch_norm_stats(input, eps);
  const std::int64_t channels = input.size(1);
  const std::int64_t of_each = input.numel() / channels;
  const at::Tensor count = at::full({1}, static_cast<double>(of_each), mean.options());
  const std::vector<at::Tensor> all = context.all_gather(at::cat({mean, inverse, count}));
  const at::Tensor table = at::stack(all);
  Statistics result;
  result.counts = table.select(1, 2 * channels).contiguous();
  result.count = result.counts.sum().item<double>();
  require_several(result.count, input);
  std::tie(result.mean, result.inverse) = at::batch_norm_gather_stats_with_counts(
      input, table.narrow(1, 0, channels), table.narrow(1, channels, channels), running_mean,
      running_var, momentum, eps, result.counts);
  return result;
}

struct SyncBatchNorm : torch::autograd::Function<SyncBatchNorm> {
  static at::Tensor forward(torch::autograd::AutogradContext* saved, const at::Tensor& given,
                            const at::Tensor& weight, const at::Tensor& bias,
                            at::Tensor running_mean, at::Tensor running_var, double eps,
                            double momentum, Context* context) {
    const at::Tensor input = given.contiguous();
    Statistics s;
    at::Tensor output;
    if (input.is_cuda()) {
      s = statistics_on_gpu(input, eps, momentum, running_mean, running_var, *context);
      output = at::batch_norm_elemt(input, weight, bias, s.mean, s.inverse, eps);
    } else {
      s = statistics_of(input, eps, *context);
      move(running_mean, s.mean, momentum);
      move(running_var, s.variance * (s.count / (s.count - 1)), momentum);
      output = centred(input, s.mean, s.rest)
                   .mul_(beside(s.inverse * weight, input))
                   .add_(beside(bias, input))
                   .to(input.scalar_type());
    }
    saved->save_for_backward({input, weight, s.mean, s.inverse, s.counts, s.rest});
    saved->saved_data["count"] = s.count;
    saved->saved_data["context"] = reinterpret_cast<std::int64_t>(context);
    return output;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* saved,
                                                 torch::autograd::variable_list gradients) {
    const auto tensors = saved->get_saved_variables();
    const at::Tensor& input = tensors[0];
    const at::Tensor& weight = tensors[1];
    const at::Tensor& mean = tensors[2];
    const at::Tensor& inverse = tensors[3];
    const double count = saved->saved_data["count"].toDouble();
    // NOLINTNEXTLINE(performance-no-int-to-ptr): autograd keeps numbers
    auto& context = *reinterpret_cast<Context*>(saved->saved_data["context"].toInt());
    const at::Tensor gradient = gradients[0].contiguous();
    const std::int64_t channels = input.size(1);
    at::Tensor for_input;
    at::Tensor for_weight;
    at::Tensor for_bias;
    if (input.is_cuda()) {
      at::Tensor sum;
      at::Tensor sum_centred;
      std::tie(sum, sum_centred, for_weight, for_bias) =
          at::batch_norm_backward_reduce(gradient, input, mean, inverse, weight, true, true, true);
      at::Tensor both = at::cat({sum, sum_centred});
      context.all_reduce_sum(both);
      for_input = at::batch_norm_backward_elemt(
          gradient, input, mean, inverse, weight, both.narrow(0, 0, channels),
          both.narrow(0, channels, channels), tensors[4].to(at::kInt));
    } else {
      const std::vector<std::int64_t> axes = all_but_channels(input);
      const at::Tensor normed = centred(input, mean, tensors[5]).mul_(beside(inverse, input));
      at::Tensor both = at::cat({gradient.sum(axes, /*keepdim=*/false, at::kDouble),
                                 (gradient * normed).sum(axes, /*keepdim=*/false, at::kDouble)});
      for_bias = both.narrow(0, 0, channels).to(at::kFloat);
      for_weight = both.narrow(0, channels, channels).to(at::kFloat);
      context.all_reduce_sum(both);
      const at::Tensor means = (both / count).to(at::kFloat);
      for_input = (gradient - beside(means.narrow(0, 0, channels), input) -
                   normed * beside(means.narrow(0, channels, channels), input)) *
                  beside(inverse * weight, input);
    }
    const at::Tensor none;
    return {for_input, for_weight, for_bias, none, none, none, none, none};
  }
};

}  // namespace

BatchNormImpl::BatchNormImpl(std::int64_t channels, double eps, double momentum)
    : eps_(eps), momentum_(momentum) {
  weight = register_parameter("weight", at::ones({channels}));
  bias = register_parameter("bias", at::zeros({channels}));
  running_mean = register_buffer("running_mean", at::zeros({channels}));
  running_var = register_buffer("running_var", at::ones({channels}));
  num_batches_tracked = register_buffer("num_batches_tracked", at::zeros({}, at::kLong));
}

torch::Tensor BatchNormImpl::forward(const torch::Tensor& input) {
  if (input.dim() < 2) throw Error("batch norm: inputs are [batch, channels, …]");
  if (is_training()) num_batches_tracked.add_(1);
  if (is_training() && context_ != nullptr && context_->world_size() > 1) {
    return SyncBatchNorm::apply(input, weight, bias, running_mean, running_var, eps_, momentum_,
                                context_);
  }
  // An empty batch moves nothing.
  if (is_training() && input.numel() > 0) {
    const std::int64_t values = input.numel() / input.size(1);  // of each channel
    require_several(static_cast<double>(values), input);
  }
  return at::batch_norm(input, weight, bias, running_mean, running_var, is_training(), momentum_,
                        eps_, at::globalContext().userEnabledCuDNN());
}

void sync_batch_norm(torch::nn::Module& model, Context& context) {
  for (const auto& item : model.named_modules(std::string(), /*include_self=*/false)) {
    if (auto* ours = item.value()->as<BatchNormImpl>()) {
      ours->synchronize(&context);
    } else if (item.value()->as<torch::nn::BatchNorm1d>() != nullptr ||
               item.value()->as<torch::nn::BatchNorm2d>() != nullptr ||
               item.value()->as<torch::nn::BatchNorm3d>() != nullptr) {
      throw Error("sync_batch_norm: '" + item.key() +
                  "' is torch::nn's batch norm, whose statistics stay within a rank; "
                  "dtrain::train::BatchNorm in its place has the same names and values");
    }
  }
}

}  // namespace dtrain::train
