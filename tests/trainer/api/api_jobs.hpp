#pragma once

#include <torch/nn/modules/linear.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "trainer/trainer.hpp"

namespace dtrain::train::test {

// In a rank: runs the named job and returns the process's exit code.
int run_api_job(const std::string& name, const std::filesystem::path& folder);

using ApiJobs = std::map<std::string, std::function<int(const std::filesystem::path&)>>;
const ApiJobs& resume_jobs();     // resume_jobs.cpp
const ApiJobs& epoch_jobs();      // epoch_jobs.cpp
const ApiJobs& fit_jobs();        // torch_trainer_test.cpp
const ApiJobs& optimizer_jobs();  // optimizer_jobs.cpp

int number_of(const char* variable, int otherwise);
void write_weights(const std::filesystem::path& path, const torch::nn::Module& module);

class SmallNet : public torch::nn::Module {
 public:
  SmallNet(std::int64_t hidden, bool dropout);
  at::Tensor forward(const at::Tensor& inputs);  // [batch, 8] -> [batch, 3]

 private:
  bool dropout_;
  torch::nn::Linear first_;
  torch::nn::Linear second_;
};

// Weights by index alone, as python_trainer_golden.py's.
void fill_by_formula(torch::nn::Module& module, double offset);

class TwoLayers : public torch::nn::Module {
 public:
  TwoLayers(std::int64_t in, std::int64_t between, std::int64_t out, double offset);
  at::Tensor forward(const at::Tensor& inputs);

 private:
  torch::nn::Linear first_;
  torch::nn::Linear second_;
};

// A generator and a discriminator, optimized by hand: 20 steps an epoch.
class Gan : public Module {
 public:
  bool automatic_optimization() const override { return false; }
  at::Tensor training_step(const Batch& batch, std::int64_t index) override;
  Optimizers configure_optimizers() override;
  DataLoader train_dataloader() override;
  std::vector<double> losses;  // of both, over all ranks

 private:
  std::shared_ptr<TwoLayers> generator_ =
      register_module("generator", std::make_shared<TwoLayers>(4, 8, 8, 0.0));
  std::shared_ptr<TwoLayers> discriminator_ =
      register_module("discriminator", std::make_shared<TwoLayers>(8, 6, 1, 5.0));
};

struct Samples {
  at::Tensor inputs;  // [count, 8]
  at::Tensor labels;  // [count]
};
Samples make_samples(std::int64_t count);

class SmallModule : public Module {
 public:
  struct Options {
    std::int64_t samples = 40;  // in batches of 4 for each rank
    bool dropout = false;
    bool plain_sgd = false;  // SGD without momentum and schedule, data in order
  };
  explicit SmallModule(Options options);
  at::Tensor training_step(const Batch& batch, std::int64_t index) override;
  void validation_step(const Batch& batch, std::int64_t index) override;
  Optimizers configure_optimizers() override;
  DataLoader train_dataloader() override;
  std::optional<DataLoader> val_dataloader() override;

  SmallNet& net() { return *net_; }

 private:
  Options options_;
  std::shared_ptr<SmallNet> net_;
};

// One whose weights are always the same.
std::shared_ptr<SmallModule> small(bool plain = true);

}  // namespace dtrain::train::test
