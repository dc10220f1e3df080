#pragma once

#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "trainer/api/trainer.hpp"
#include "trainer/train/tensors.hpp"

namespace dtrain::train {

// Any model that makes one tensor of one.
class AnyModel {
 public:
  template <typename Model>
  AnyModel(std::shared_ptr<Model> model)  // NOLINT: a model is one
      : module_(model), forward_([model](const at::Tensor& x) { return model->forward(x); }) {}
  template <typename Impl>
  AnyModel(const torch::nn::ModuleHolder<Impl>& model) : AnyModel(model.ptr()) {}  // NOLINT

  torch::nn::Module& module() const { return *module_; }
  const std::shared_ptr<torch::nn::Module>& ptr() const { return module_; }
  at::Tensor forward(const at::Tensor& inputs) const { return forward_(inputs); }

 private:
  std::shared_ptr<torch::nn::Module> module_;
  std::function<at::Tensor(const at::Tensor&)> forward_;
};

struct TrainAndValidation {
  DataLoader train;
  std::optional<DataLoader> validation;
};

// A training from functions that create its parts, as RaySGD's TorchTrainer: each gets `config`.
// Batches are (inputs, labels). One train() is one epoch.
//
//     CreatorTrainer trainer({.model_creator = …, .data_creator = …, .optimizer_creator = …,
//                                .loss_creator = …, .config = {{"lr", 0.1}}});
//     for (int epoch = 0; epoch < 10; ++epoch) print(trainer.train());
//     print(trainer.validate());
//
// It is a Trainer around a Module made of these functions; collective, all of it.
class CreatorTrainer {
 public:
  using Config = nlohmann::json;
  using Loss = std::function<at::Tensor(const at::Tensor& outputs, const at::Tensor& labels)>;

  struct Options {
    std::function<AnyModel(const Config&)> model_creator;
    std::function<TrainAndValidation(const Config&)> data_creator;
    std::function<std::shared_ptr<Optimizer>(const AnyModel&, const Config&)> optimizer_creator;
    // Cross entropy if empty.
    std::function<Loss(const Config&)> loss_creator;
    std::function<SchedulePtr(const Config&)> scheduler_creator;  // constant if empty
    Scheduler::Per scheduler_step_freq = Scheduler::Per::step;
    Config config = Config::object();
    TrainerOptions trainer;  // precision, strategy, callbacks, …; max_epochs does not count
  };

  // Creates everything, and goes on from the newest checkpoint. Throws Error if a creator is
  // missing.
  explicit CreatorTrainer(Options options);
  ~CreatorTrainer();

  // One more epoch: epoch, batch_count, num_samples, train_loss (the mean over all samples of all
  // ranks) and last_train_loss. After it, exit_code() says whether to leave.
  Metrics train();
  // num_samples, val_loss and val_accuracy (of class scores and labels), over all ranks.
  Metrics validate();
  int exit_code() const { return exit_code_; }  // 143 once it was told to go

  torch::nn::Module& get_model();
  // Weights and buffers by name, as they are: copy them to keep them.
  TensorMap state_dict();
  void load_state_dict(const TensorMap& tensors);  // strictly; throws Error
  // A safetensors file of the same. Rank 0 writes.
  void save(const std::filesystem::path& path);
  void load(const std::filesystem::path& path);
  // Waits for checkpoints and leaves the group.
  void shutdown();

 private:
  class Created;
  std::unique_ptr<Trainer> trainer_;
  std::shared_ptr<Created> module_;
  int exit_code_ = 0;
};

}  // namespace dtrain::train
