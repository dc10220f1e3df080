// Trainings that end in their midst, and must go on as if they had not.
#include <ATen/ATen.h>
#include <signal.h>
#include <torch/nn/modules/batchnorm.h>

#include <fstream>

#include "tests/trainer/api/api_jobs.hpp"
#include "tests/trainer/support/require.hpp"
#include "trainer/core/error.hpp"
#include "trainer/trainer.hpp"

namespace dtrain::train::test {
namespace {

// Writes down all metrics after each step, validation and epoch, by their place.
class Recorder final : public Callback {
 public:
  explicit Recorder(std::filesystem::path path) : path_(std::move(path)) {}
  std::string name() const override { return "recorder"; }
  void on_step_end(Trainer& trainer, Module&) override { write(trainer, "step"); }
  void on_validation_end(Trainer& trainer, Module&) override { write(trainer, "validated"); }
  void on_train_epoch_end(Trainer& trainer, Module&) override { write(trainer, "epoch"); }

 private:
  void write(Trainer& trainer, const std::string& what) {
    std::ofstream out(path_, std::ios::app);
    out << what << trainer.global_step() << ": "
        << metrics_to_json(trainer.callback_metrics()).dump() << "\n";
  }
  std::filesystem::path path_;
};

// TEST_DIE_AT=STEP: SIGKILL in the micro batch behind that step. TEST_TERM_IN_VALIDATION=N: the
// last rank gets SIGTERM in its Nth batch of validation.
class Watched final : public SmallModule {
 public:
  using SmallModule::SmallModule;
  at::Tensor training_step(const Batch& batch, std::int64_t index) override {
    if (trainer().global_step() == number_of("TEST_DIE_AT", -1)) {
      session().finish();  // so that it is known which checkpoint is the last one
      ::raise(SIGKILL);
    }
    const at::Tensor loss = SmallModule::training_step(batch, index);
    log("own", loss.item<double>() + context().rank(), {.on_step = false, .on_epoch = true});
    log("shared", loss, {.on_step = true, .on_epoch = true, .sync_dist = true});
    return loss;
  }
  void validation_step(const Batch& batch, std::int64_t index) override {
    const bool last = context().rank() + 1 == context().world_size();
    if (++validated == number_of("TEST_TERM_IN_VALIDATION", -1) && last) ::raise(SIGTERM);
    at::rand({3});  // a validation may draw, and is then drawn again
    SmallModule::validation_step(batch, index);
  }
  int validated = 0;
};

int recorded(const std::filesystem::path& folder) {
  const int ranks = number_of("WORLD_SIZE", 1);
  TrainerOptions options;
  options.max_epochs = 3;
  options.max_steps = number_of("TEST_MAX_STEPS", -1);
  options.log_every_n_steps = 2;
  options.val_check_interval = number_of("TEST_VALIDATE_EVERY", 10);
  options.default_root_dir = folder / "storage";
  options.seed = 5;
  EarlyStopping::Options stopping;
  stopping.patience = 50;
  options.callbacks = {
      std::make_shared<EmaWeights>(0.9), std::make_shared<EarlyStopping>(stopping),
      std::make_shared<Recorder>(folder / ("metrics-" + std::string(std::getenv("RANK")))),
      std::make_shared<ModelCheckpoint>(ModelCheckpoint::Options{.every_n_train_steps = 3})};
  Trainer trainer(options);
  at::manual_seed(4);
  auto module = std::make_shared<Watched>(
      SmallModule::Options{.samples = 40 * ranks, .dropout = true, .plain_sgd = false});
  const int code = trainer.fit(module);
  const std::string rank = std::to_string(context().rank());
  if (code == 0) write_weights(folder / ("final-" + rank + ".safetensors"), *module);
  if (code != 0) std::ofstream(folder / ("validated-" + rank)) << module->validated;
  return code;
}

// Each rank with a storage of its own, as on nodes without a shared file system.
int apart(const std::filesystem::path& folder) {
  InitOptions options;
  options.session.storage = folder / ("storage-" + std::string(std::getenv("RANK")));
  options.session.storage_probe = std::chrono::milliseconds(50);
  init(options);
  return 0;
}

// The last rank's copy of the data is shorter. TEST_DATA: which data, train or val, of a Trainer,
// or epochs.
int data_apart(const std::filesystem::path& /*folder*/) {
  class Apart final : public SmallModule {
   public:
    using SmallModule::SmallModule;
    std::optional<DataLoader> val_dataloader() override { return data(is_short("val") ? 7 : 9, 2); }
    static DataLoader data(std::int64_t samples, std::int64_t batch_size) {
      const Samples all = make_samples(samples);
      return DataLoader::of_tensors({all.inputs, all.labels}, {.batch_size = batch_size});
    }
    static bool is_short(const std::string& which) {
      return number_of("RANK", 0) + 1 == number_of("WORLD_SIZE", 1) &&
             which == std::getenv("TEST_DATA");
    }
  };
  if (std::string("epochs") == std::getenv("TEST_DATA")) {
    init();
    auto model = prepare_model(std::make_shared<SmallNet>(8, false));
    prepare_optimizer(std::make_shared<Sgd>(named_parameters(*model), SgdOptions{.lr = 0.1}));
    const DataLoader loader =
        prepare_data_loader(Apart::data(40, Apart::is_short("epochs") ? 3 : 4));
    for (const auto epoch : epochs(1)) {
      for (const Batch& batch : loader.epoch(epoch)) require(batch.size() > 0, "a batch");
    }
    shutdown();
    return 0;
  }
  TrainerOptions options;
  options.fast_dev_run = true;
  Trainer trainer(options);
  SmallModule::Options small;
  small.samples = Apart::is_short("train") ? 30 : 40;
  return trainer.fit(std::make_shared<Apart>(small));
}

class Normed : public torch::nn::Module {
 public:
  Normed() : norm_(register_module("norm", torch::nn::BatchNorm1d(8))) {}
  at::Tensor forward(const at::Tensor& inputs) { return norm_->forward(inputs); }

 private:
  torch::nn::BatchNorm1d norm_;
};

// Batch norms whose statistics stay each rank's own. The second start must find them again.
int own_buffers(const std::filesystem::path& folder) {
  InitOptions options;
  options.session.storage = folder / "storage";
  init(options);
  auto net = std::make_shared<Normed>();
  PrepareModel prepare;
  prepare.ddp.broadcast_buffers = false;
  auto model = prepare_model(net, prepare);
  prepare_optimizer(std::make_shared<Sgd>(named_parameters(*net), SgdOptions{.lr = 0.1}));
  const auto place = get_checkpoint();
  const int of_rank = number_of("TEST_BUFFERS_OF", context().rank());
  const auto path = folder / ("buffers-" + std::to_string(of_rank) + ".safetensors");
  if (place) {
    TensorMap mine;
    for (const auto& item : net->named_buffers()) mine.emplace(item.key(), item.value());
    const TensorMap before = read_tensors(path);
    for (const auto& [name, tensor] : mine) {
      if (!tensor.equal(before.at(name))) throw Error("other buffers: " + name);
    }
    shutdown();
    return 0;
  }
  const at::Tensor inputs = make_samples(6).inputs + context().rank();
  for (int step = 0; step < 2; ++step) {
    backward(model(inputs).square().mean());
    optimizer_step();
  }
  report({}, Place{2, 0, 0});
  TensorMap mine;
  for (const auto& item : net->named_buffers()) mine.emplace(item.key(), item.value());
  FileSink sink(path);
  write_tensors(sink, mine);
  sink.finish();
  shutdown();
  return 0;
}

}  // namespace

const ApiJobs& resume_jobs() {
  static const ApiJobs jobs{{"recorded", recorded},
                            {"apart", apart},
                            {"data_apart", data_apart},
                            {"own_buffers", own_buffers}};
  return jobs;
}

}  // namespace dtrain::train::test
