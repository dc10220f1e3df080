#include "trainer/api/lr_finder.hpp"

#include <ATen/ops/gradient.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "trainer/api/fill_window.hpp"
#include "trainer/api/trainer_state.hpp"
#include "trainer/core/error.hpp"
#include "trainer/core/files.hpp"

namespace dtrain::train {
namespace {

constexpr double kSmoothing = 0.98;  // Lightning's beta

// All that a few steps change, to be put back.
class Before {
 public:
  Before(const torch::nn::Module& module, Optimizer& optimizer)
      : optimizer_(optimizer),
        lr_(optimizer.lr()),
        scaler_(internal::scaler().state()),
        generators_(generator_state(context().device())) {
    const c10::NoGradGuard no_grad;
    for (const std::vector<at::Tensor>& all : {module.parameters(), module.buffers()}) {
      for (const at::Tensor& tensor : all) tensors_.emplace_back(tensor, tensor.detach().clone());
    }
    for (const auto& [key, tensor] : optimizer.own_state()) state_.emplace(key, tensor.clone());
  }

  void put_back() {
    const c10::NoGradGuard no_grad;
    zero_grad();
    for (auto& [tensor, value] : tensors_) tensor.detach().copy_(value);
    optimizer_.load_own_state(state_);
    optimizer_.set_lr(lr_);
    internal::scaler().load_state(scaler_);
    set_generator_state(generators_, context().device());
  }

 private:
  Optimizer& optimizer_;
  double lr_;
  nlohmann::json scaler_;
  at::Tensor generators_;
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;
  std::map<std::string, at::Tensor> state_;
};

}  // namespace

double lr_of_step(const LrFinderOptions& options, std::int64_t index) {
  if (options.num_training < 1) throw Error("lr_find: num_training must be at least 1");
  if (!(options.min_lr > 0) || !(options.max_lr > options.min_lr)) {
    throw Error("lr_find: min_lr must be above 0, and max_lr above it");
  }
  if (index == 0) return options.min_lr;
  const double part = static_cast<double>(index + 1) / static_cast<double>(options.num_training);
  return options.mode == LrFinderOptions::Mode::linear
             ? options.min_lr + part * (options.max_lr - options.min_lr)
             : options.min_lr * std::pow(options.max_lr / options.min_lr, part);
}

std::optional<double> LrFinderResult::suggestion(std::int64_t skip_begin,
                                                 std::int64_t skip_end) const {
  std::vector<double> rates;
  std::vector<double> losses;
  for (std::int64_t i = skip_begin; i < static_cast<std::int64_t>(points.size()) - skip_end; ++i) {
    const Point& point = points[static_cast<std::size_t>(i)];
    if (!std::isfinite(point.loss)) continue;
    rates.push_back(point.lr);
    losses.push_back(point.loss);
  }
  if (losses.size() < 2) return std::nullopt;
  const at::Tensor slope =
      at::gradient(at::tensor(losses, at::kDouble), {at::tensor(rates, at::kDouble)},
                   /*dim=*/std::nullopt, /*edge_order=*/1)
          .at(0);
  return rates.at(static_cast<std::size_t>(slope.argmin().item<std::int64_t>()));
}

std::string LrFinderResult::table(std::int64_t rows) const {
  constexpr int kBar = 40;
  double least = INFINITY;
  double most = -INFINITY;
  for (const Point& point : points) {
    if (!std::isfinite(point.loss)) continue;
    least = std::min(least, point.loss);
    most = std::max(most, point.loss);
  }
  const std::optional<double> suggested = suggestion();
  const auto count = static_cast<std::int64_t>(points.size());
  const std::int64_t every = std::max<std::int64_t>(1, count / std::max<std::int64_t>(rows, 1));
  std::string text = "          lr          loss\n";
  for (std::int64_t i = 0; i < count; ++i) {
    const Point& point = points[static_cast<std::size_t>(i)];
    const bool marked = suggested && point.lr == *suggested;
    if (i % every != 0 && i + 1 != count && !marked) continue;
    const double height = most > least ? (point.loss - least) / (most - least) : 0;
    const int bar = std::isfinite(point.loss) ? static_cast<int>(height * kBar) : 0;
    char line[160];
    std::snprintf(line, sizeof line, "%12.4e  %12.6g  %s%s\n", point.lr, point.loss,
                  std::string(static_cast<std::size_t>(bar) + 1, '*').c_str(),
                  marked ? "  <- suggestion" : "");
    text += line;
  }
  return text;
}

void LrFinderResult::save_csv(const std::filesystem::path& path) const {
  const auto number = [](double value) {
    char text[32];
    return std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
  };
  std::string text = "lr,loss\n";
  for (const Point& point : points) text += number(point.lr) + "," + number(point.loss) + "\n";
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path());
  write_atomically(path, text);
}

LrFinderResult Trainer::State::find_lr(const LrFinderOptions& its) {
  lr_of_step(its, 0);
  if (!automatic) {
    throw Error("lr_find: the module optimizes by hand, so that nobody knows whose rate to raise");
  }
  if (train_batches == 0) throw Error("lr_find: there is no batch to train on");
  Optimizer& optimizer = *optimizers.at(0);
  Before before(*module, optimizer);
  const Metrics metrics_before = metrics;
  MetricLog unseen(true, false);
  struct Logs {
    ~Logs() { module.log_ = nullptr; }
    Module& module;
  };
  const Logs logs{*module};
  module->log_ = &unseen;

  LrFinderResult result;
  double average = 0;
  double best = 0;
  std::int64_t epoch = place.epoch;
  std::int64_t index = batches_done();
  std::optional<DataLoader::Pass> pass(train_data->pass(epoch, place.position));
  for (std::int64_t step = 1; step <= its.num_training; ++step) {
    std::deque<Batch> ready;
    std::int64_t window = 0;
    for (int tries = 0; window == 0; ++tries) {
      if (tries > 0) {
        if (tries > 1) throw Error("lr_find: the training data have no batch");
        pass.emplace(train_data->pass(++epoch));
        index = 0;
      }
      window = std::min(options.accumulate_grad_batches, train_batches - index);
      if (train_data->is_stream() && window > 0) {
        window = fill_window(*pass, ready, window, context());
      }
    }
    optimizer.set_lr(lr_of_step(its, step - 1));
    index += run_window(nullptr, *pass, ready, index, window).batches;
    take_step(nullptr);
    train_log.late().read();
    const double loss =
        all_reduce_mean(std::exchange(window_loss, 0) / static_cast<double>(window));
    window_losses = 0;
    average = kSmoothing * average + (1 - kSmoothing) * loss;
    const double smoothed = average / (1 - std::pow(kSmoothing, static_cast<double>(step + 1)));
    result.points.push_back({optimizer.lr(), smoothed});
    if (its.early_stop_threshold && step > 1 && smoothed > *its.early_stop_threshold * best) {
      result.stopped_early = true;
      break;
    }
    if (smoothed < best || step == 1) best = smoothed;
  }
  before.put_back();
  metrics = metrics_before;
  times = StepTimes{};
  return result;
}

LrFinderResult Trainer::lr_find(std::shared_ptr<Module> module, const LrFinderOptions& options) {
  prepare(std::move(module));
  return state_->find_lr(options);
}

}  // namespace dtrain::train
