// Trainings through the API, as one rank of several.
#include "tests/trainer/api/api_jobs.hpp"
#include "tests/trainer/support/require.hpp"

#include <ATen/ATen.h>
#include <signal.h>
#include <torch/nn/functional/dropout.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>

#include "trainer/core/error.hpp"
#include "trainer/core/run.hpp"
#include "trainer/train/tensors.hpp"
#include "trainer/trainer.hpp"

namespace dtrain::train::test {
namespace {

// A Lightning-like training with accumulation, clipping, a schedule, EMA and early stopping that
// is killed or told to go after some micro batches, and goes on when it is started again.
//
// TEST_DIE_AT=N: SIGKILL in the Nth micro batch of all; TEST_TERM_AT=N: SIGTERM then.
class Dying final : public SmallModule {
 public:
  using SmallModule::SmallModule;
  at::Tensor training_step(const Batch& batch, std::int64_t index) override {
    const auto loss = SmallModule::training_step(batch, index);
    const int at = static_cast<int>(trainer().current_epoch()) * 10 + static_cast<int>(index) + 1;
    const bool last = context().rank() + 1 == context().world_size();
    if (at == number_of("TEST_DIE_AT", -1)) ::raise(SIGKILL);
    if (at == number_of("TEST_TERM_AT", -1) && last) ::raise(SIGTERM);
    return loss;
  }
};

int fit(const std::filesystem::path& folder) {
  TrainerOptions options;
  options.max_epochs = 3;
  options.accumulate_grad_batches = 4;  // of 10 batches: 4, 4, 2
  options.gradient_clip_val = 0.5;
  options.strategy = std::getenv("TEST_ZERO") != nullptr ? "zero1" : "ddp";
  options.default_root_dir = folder / "storage";
  options.seed = 5;
  options.log_every_n_steps = 1;
  options.callbacks = {std::make_shared<EmaWeights>(0.9),
                       std::make_shared<EarlyStopping>(EarlyStopping::Options{.patience = 50}),
                       std::make_shared<ModelCheckpoint>(
                           ModelCheckpoint::Options{.every_n_train_steps = 2, .save_top_k = 2})};
  Trainer trainer(options);
  SmallModule::Options small;
  small.dropout = true;
  small.samples = 40 * number_of("WORLD_SIZE", 1);
  at::manual_seed(4);
  auto module = std::make_shared<Dying>(small);
  const int code = trainer.fit(module);
  if (code == 0) {
    const std::string rank = std::to_string(context().rank());
    write_weights(folder / ("final-" + rank + ".safetensors"), *module);
  }
  return code;
}

// The functions: the same as the small loop of their header.
int functions(const std::filesystem::path& folder) {
  InitOptions options;
  options.session.storage = folder / "storage";
  Context& me = init(options);
  require(is_initialized() && &me == &context(), "one context");
  set_seed(1);
  auto model = prepare_model(std::make_shared<SmallNet>(8, false));
  auto optimizer = prepare_optimizer(
      std::make_shared<Adam>(named_parameters(*model), AdamOptions{.lr = 1e-2}), Strategy::zero1);
  const Samples all = make_samples(24);
  const DataLoader data = prepare_data_loader(
      DataLoader::of_tensors({all.inputs, all.labels}, {.batch_size = 4, .shuffle = true}));
  Place place = get_checkpoint().value_or(Place{});
  require(place.epoch == number_of("TEST_EPOCH", 0), "goes on where it was");
  double last = 0;
  auto pass = data.pass(place.epoch);
  while (auto batch = pass.next()) {
    const at::Tensor loss = at::cross_entropy_loss(model((*batch)[0]), (*batch)[1]);
    backward(loss);
    clip_gradients(1.0);
    require(optimizer_step(), "a step");
    last = loss.item<double>();
    ++place.step;
  }
  report({{"loss", last}}, Place{place.step, place.epoch + 1, 0});
  require(all_reduce_mean(me.rank()) == (me.world_size() - 1) / 2.0, "mean");
  require(all_gather(nlohmann::json{{"rank", me.rank()}}).back()["rank"] == me.world_size() - 1,
          "objects");
  require(broadcast(nlohmann::json(me.rank()), 1) == 1, "from rank 1");
  barrier();
  shutdown();
  require(!is_initialized(), "nothing is left");
  return 0;
}

// Logged values of uneven ranks: 5 samples over 2 ranks in batches of 2.
class Logging final : public SmallModule {
 public:
  using SmallModule::SmallModule;
  at::Tensor training_step(const Batch& batch, std::int64_t index) override {
    log("both", context().rank() + 1.0, {.on_step = true, .on_epoch = true, .sync_dist = true});
    return SmallModule::training_step(batch, index);
  }
  void validation_step(const Batch& batch, std::int64_t /*index*/) override {
    at::Tensor values = at::zeros({batch.size()});
    for (std::size_t i = 0; i < batch.indices.size(); ++i) {
      values[static_cast<std::int64_t>(i)] = static_cast<float>(batch.indices[i]);
    }
    log("index", values.mean(), {.on_step = {}, .on_epoch = {}, .sync_dist = true});
    if (context().rank() == 1)
      log("only_second", 3.0, {.on_step = {}, .on_epoch = {}, .sync_dist = true});
  }
  std::optional<DataLoader> val_dataloader() override {
    const Samples all = make_samples(5);
    return DataLoader::of_tensors({all.inputs, all.labels}, {.batch_size = 2});
  }
};

int logging(const std::filesystem::path& folder) {
  TrainerOptions options;
  options.log_every_n_steps = 1;
  options.metrics_file = folder / "metrics.jsonl";
  Trainer trainer(options);
  trainer.fit(std::make_shared<Logging>(SmallModule::Options{}));
  const Metrics& metrics = trainer.callback_metrics();
  require(metrics.at("index") == 2.0, "the mean over all samples, each once");
  require(metrics.at("both_step") == 1.5 && metrics.at("both_epoch") == 1.5, "both ways");
  require(metrics.at("only_second") == 3.0, "what one rank logs");
  return 0;
}

// One rank asks to stop in the middle of an epoch: all do, after the same step.
int stops_within(const std::filesystem::path& folder) {
  class Stopper final : public Callback {
   public:
    std::string name() const override { return "stopper"; }
    void on_step_end(Trainer& trainer, Module& /*module*/) override {
      if (context().rank() + 1 == context().world_size() && trainer.global_step() == 3) {
        trainer.stop();
      }
    }
  };
  TrainerOptions options;
  options.max_epochs = 100;
  options.default_root_dir = folder / "storage";
  options.callbacks = {std::make_shared<Stopper>()};
  Trainer trainer(options);
  SmallModule::Options small;
  small.samples = 200;
  require(trainer.fit(std::make_shared<SmallModule>(small)) == 0, "not preempted");
  require(trainer.global_step() == (context().world_size() == 1 ? 3 : 4), "after that step");
  require(trainer.current_epoch() == 0, "within the first epoch");
  return 0;
}

// One rank asks to stop at an epoch's end: all do, there.
int stops(const std::filesystem::path& /*folder*/) {
  class Stopper final : public Callback {
   public:
    std::string name() const override { return "stopper"; }
    void on_train_epoch_end(Trainer& trainer, Module& /*module*/) override {
      if (context().rank() == 1 && trainer.current_epoch() == 1) trainer.stop();
    }
  };
  TrainerOptions options;
  options.max_epochs = 100;
  options.callbacks = {std::make_shared<Stopper>()};
  Trainer trainer(options);
  trainer.fit(std::make_shared<SmallModule>(SmallModule::Options{}));
  require(trainer.current_epoch() == 2, "after the second epoch");
  return 0;
}

// A checkpoint after the first step, before DDP has made its buckets anew.
int early_checkpoint(const std::filesystem::path& folder) {
  InitOptions options;
  options.session.storage = folder / "storage";
  options.context.timeout = std::chrono::seconds(10);
  init(options);
  PrepareModel prepare;
  prepare.ddp.first_bucket_bytes = 64;
  prepare.ddp.bucket_bytes = 64;
  auto model = prepare_model(std::make_shared<SmallNet>(8, false), prepare);
  auto optimizer =
      prepare_optimizer(std::make_shared<Sgd>(named_parameters(*model), SgdOptions{.lr = 0.1}));
  const Samples all = make_samples(4);
  const std::int64_t begins = get_checkpoint().value_or(Place{}).step;
  require(begins == number_of("TEST_STEP", 0), "goes on where it was");
  for (std::int64_t step = begins + 1; step <= begins + 3; ++step) {
    backward(at::cross_entropy_loss(model(all.inputs), all.labels));
    optimizer_step();
    report({}, Place{step, 0, 0});
    session().finish();
  }
  shutdown();
  return 0;
}

// Numbers that come one after the other: rank 0's part has 13 of them, rank 1's 6, each in an order
// that is the epoch's own. Each rank writes down what it was given.
struct Number {
  std::int64_t value;
};

class Numbers final : public SampleStream<Number> {
 public:
  Numbers(StreamShare share, std::int64_t epoch)
      : count_(share.part == 0 ? 13 : number_of("TEST_SHORT", 6)),
        base_(share.part * 100),
        epoch_(epoch) {}
  std::optional<Number> next() override {
    if (given_ == count_) return std::nullopt;
    return Number{base_ + (given_++ + epoch_) % count_};
  }

 private:
  std::int64_t count_;
  std::int64_t base_;
  std::int64_t epoch_;
  std::int64_t given_ = 0;
};

class Streaming final : public SmallModule {
 public:
  explicit Streaming(std::filesystem::path folder)
      : SmallModule({.dropout = true}), folder_(std::move(folder)) {}
  DataLoader train_dataloader() override {
    return DataLoader::of_stream<Number>(
        "numbers",
        [](StreamShare share, std::int64_t epoch) {
          return std::make_unique<Numbers>(share, epoch);
        },
        [](const std::vector<Number>& numbers) {
          std::vector<std::int64_t> values;
          for (const Number& number : numbers) values.push_back(number.value);
          const at::Tensor value = at::tensor(values, at::kLong);
          const at::Tensor inputs = at::sin(at::arange(8) * 0.7 + value.unsqueeze(1));
          return Batch{{inputs, value.remainder(3), value}, {}};
        },
        {.batch_size = 2});
  }
  at::Tensor training_step(const Batch& batch, std::int64_t index) override {
    std::ofstream seen(folder_ / ("seen-" + std::to_string(context().rank())), std::ios::app);
    seen << trainer().current_epoch() << "." << index << ":";
    for (std::int64_t i = 0; i < batch.size(); ++i) seen << " " << batch[2][i].item<std::int64_t>();
    seen << "\n";
    const int at = static_cast<int>(trainer().current_epoch() * 10 + index);
    if (at == number_of("TEST_DIE_AT", -1)) ::raise(SIGKILL);
    return SmallModule::training_step(batch, index);
  }

 private:
  std::filesystem::path folder_;
};

int streams(const std::filesystem::path& folder) {
  TrainerOptions options;
  options.max_epochs = 2;
  options.accumulate_grad_batches = number_of("TEST_WINDOW", 1);
  options.default_root_dir = folder / "storage";
  options.seed = 5;
  options.callbacks = {
      std::make_shared<ModelCheckpoint>(ModelCheckpoint::Options{.every_n_train_steps = 1})};
  Trainer trainer(options);
  at::manual_seed(4);
  auto module = std::make_shared<Streaming>(folder);
  const int code = trainer.fit(module);
  require(trainer.current_epoch() == 2, "two epochs");
  require(trainer.callback_metrics().contains("val_loss"), "validated at the end of an epoch");
  write_weights(folder / ("final-" + std::to_string(context().rank()) + ".safetensors"), *module);
  return code;
}

int creators(const std::filesystem::path& folder) {
  CreatorTrainer::Options options;
  options.config = {{"lr", 0.05}, {"hidden", 12}};
  options.model_creator = [](const auto& config) {
    at::manual_seed(7);
    return AnyModel(std::make_shared<SmallNet>(config.at("hidden").template get<int>(), false));
  };
  options.data_creator = [](const auto& /*config*/) {
    const Samples train = make_samples(64);
    const Samples test = make_samples(9);
    return TrainAndValidation{
        DataLoader::of_tensors({train.inputs, train.labels}, {.batch_size = 8, .shuffle = true}),
        DataLoader::of_tensors({test.inputs, test.labels}, {.batch_size = 2})};
  };
  options.optimizer_creator = [](const AnyModel& model, const auto& config) {
    return std::make_shared<Sgd>(
        named_parameters(model.module()),
        SgdOptions{.lr = config.at("lr").template get<double>(), .momentum = 0.9});
  };
  options.loss_creator = [](const auto& /*config*/) {
    return [](const at::Tensor& outputs, const at::Tensor& labels) {
      return at::cross_entropy_loss(outputs, labels);
    };
  };
  CreatorTrainer trainer(options);
  double first = 0;
  Metrics last;
  for (int epoch = 0; epoch < 8; ++epoch) {
    last = trainer.train();
    if (epoch == 0) first = last.at("train_loss");
    require(last.at("epoch") == epoch + 1, "epoch");
    require(last.at("num_samples") == 64, "all samples");
    require(last.at("batch_count") == 8 / context().world_size(), "batches of this rank");
  }
  require(last.at("train_loss") < 0.7 * first, "it learns");
  const Metrics tested = trainer.validate();
  require(tested.at("num_samples") == 9, "each test sample once");
  require(tested.at("val_accuracy") >= 0 && tested.at("val_accuracy") <= 1, "accuracy");
  trainer.save(folder / "model.safetensors");
  context().barrier();
  const at::Tensor before = trainer.state_dict().begin()->second.clone();
  at::NoGradGuard no_grad;
  trainer.state_dict().begin()->second.zero_();
  trainer.load(folder / "model.safetensors");
  require(trainer.state_dict().begin()->second.equal(before), "saved and loaded");
  trainer.shutdown();
  return 0;
}

}  // namespace

int run_api_job(const std::string& name, const std::filesystem::path& folder) {
  ApiJobs jobs{{"fit", fit},
               {"functions", functions},
               {"logging", logging},
               {"creators", creators},
               {"early_checkpoint", early_checkpoint},
               {"stops", stops},
               {"streams", streams},
               {"stops_within", stops_within}};
  jobs.insert(resume_jobs().begin(), resume_jobs().end());
  jobs.insert(epoch_jobs().begin(), epoch_jobs().end());
  jobs.insert(fit_jobs().begin(), fit_jobs().end());
  jobs.insert(optimizer_jobs().begin(), optimizer_jobs().end());
  return run([&] { return jobs.at(name)(folder); });
}

int number_of(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

void write_weights(const std::filesystem::path& path, const torch::nn::Module& module) {
  FileSink sink(path);
  write_tensors(sink, state_dict(module));
  sink.finish();
}

SmallNet::SmallNet(std::int64_t hidden, bool dropout)
    : dropout_(dropout),
      first_(register_module("first", torch::nn::Linear(8, hidden))),
      second_(register_module("second", torch::nn::Linear(hidden, 3))) {}

at::Tensor SmallNet::forward(const at::Tensor& inputs) {
  at::Tensor x = at::tanh(first_->forward(inputs));
  if (dropout_) x = at::dropout(x, 0.2, is_training());
  return second_->forward(x);
}

Samples make_samples(std::int64_t count) {
  // By index alone: a generator would be one that training uses too.
  const at::Tensor grid = at::arange(count * 8, at::kFloat).view({count, 8});
  const at::Tensor inputs = at::sin(grid * 1.7 + 0.3);
  return {inputs, (inputs.sum(1) * 2).round().to(at::kLong).remainder(3)};
}

std::shared_ptr<SmallModule> small(bool plain) {
  SmallModule::Options options;
  options.plain_sgd = plain;
  at::manual_seed(11);
  return std::make_shared<SmallModule>(options);
}

SmallModule::SmallModule(Options options)
    : options_(options),
      net_(register_module("net", std::make_shared<SmallNet>(16, options.dropout))) {}

at::Tensor SmallModule::training_step(const Batch& batch, std::int64_t /*index*/) {
  const at::Tensor loss = at::cross_entropy_loss(net_->forward(batch[0]), batch[1]);
  log("train_loss", loss, {.on_step = {}, .on_epoch = {}, .sync_dist = true, .prog_bar = true});
  return loss;
}

void SmallModule::validation_step(const Batch& batch, std::int64_t /*index*/) {
  log("val_loss", at::cross_entropy_loss(net_->forward(batch[0]), batch[1]),
      {.on_step = {}, .on_epoch = {}, .sync_dist = true});
}

Optimizers SmallModule::configure_optimizers() {
  if (options_.plain_sgd) {
    return {std::make_shared<Sgd>(trained_parameters(), SgdOptions{.lr = 0.1}), nullptr};
  }
  return {
      std::make_shared<AdamW>(decay_groups(*this), AdamWOptions{.lr = 1e-2, .weight_decay = 0.1}),
      linear_schedule(0.1, 1, 5)};
}

DataLoader SmallModule::train_dataloader() {
  const Samples all = make_samples(options_.samples);
  return DataLoader::of_tensors({all.inputs, all.labels},
                                {.batch_size = 4, .shuffle = !options_.plain_sgd, .seed = 3});
}

std::optional<DataLoader> SmallModule::val_dataloader() {
  const Samples all = make_samples(9);
  return DataLoader::of_tensors({all.inputs, all.labels}, {.batch_size = 2});
}

}  // namespace dtrain::train::test
