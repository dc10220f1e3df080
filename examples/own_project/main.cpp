// A training program outside of dtrain's tree: a model of one's own, made-up data, two classes.

#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/linear.h>

#include "trainer/trainer.hpp"

namespace dt = dtrain::train;

// Is a point within the circle of radius 0.6?
class Circle : public dt::Module {
 public:
  at::Tensor forward(const at::Tensor& points) {
    return out_->forward(torch::tanh(hidden_->forward(points)));
  }

  at::Tensor training_step(const dt::Batch& batch, std::int64_t /*index*/) override {
    const at::Tensor loss = at::cross_entropy_loss(forward(batch[0]), batch[1]);
    log("train_loss", loss, {.prog_bar = true});
    return loss;
  }

  void validation_step(const dt::Batch& batch, std::int64_t /*index*/) override {
    const at::Tensor right = forward(batch[0]).argmax(1).eq(batch[1]).to(at::kFloat);
    dt::LogOptions all_ranks;
    all_ranks.sync_dist = true;
    log("val_accuracy", right.mean(), all_ranks);
  }

  dt::Optimizers configure_optimizers() override {
    return {dt::adam(*this, {.lr = 0.02}), nullptr};
  }

  dt::DataLoader train_dataloader() override { return points(4096, 64, true); }
  std::optional<dt::DataLoader> val_dataloader() override { return points(1024, 256, false); }

 private:
  // On every rank the same: a fixed grid.
  static dt::DataLoader points(std::int64_t count, std::int64_t batch_size, bool shuffle) {
    const at::Tensor index = at::arange(count, at::kFloat);
    const at::Tensor x = at::stack({index * 0.618034F, index * 0.754878F}, 1).frac() * 2 - 1;
    const at::Tensor y = x.square().sum(1).lt(0.36).to(at::kLong);
    dt::DataLoaderOptions options;
    options.batch_size = batch_size;
    options.shuffle = shuffle;
    return dt::DataLoader::of_tensors({x, y}, options);
  }

  torch::nn::Linear hidden_{register_module("hidden", torch::nn::Linear(2, 32))};
  torch::nn::Linear out_{register_module("out", torch::nn::Linear(32, 2))};
};

int main() {
  return dt::run([] {
    dt::TrainerOptions options;
    options.max_epochs = 4;
    dt::Trainer trainer(options);
    return trainer.fit(std::make_shared<Circle>());
  });
}
