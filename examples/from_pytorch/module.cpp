// ResNet-18 on FashionMNIST as a Module: docs/from_pytorch.md shows it beside Lightning.
// module DATA [IMAGES]

#include "examples/from_pytorch/data.hpp"
#include "trainer/trainer.hpp"

using namespace dtrain::train;

class Classifier : public Module {
 public:
  Classifier(std::string data, std::int64_t images) : data_(std::move(data)), images_(images) {
    net_->replace_conv1(resnet_conv1(/*channels=*/1));
  }

  at::Tensor training_step(const Batch& batch, std::int64_t /*index*/) override {
    at::Tensor loss = at::cross_entropy_loss(net_->forward(batch[0]), batch[1]);
    log("train_loss", loss, {.prog_bar = true});
    return loss;
  }

  void validation_step(const Batch& batch, std::int64_t /*index*/) override {
    const at::Tensor scores = net_->forward(batch[0]);
    log("val_loss", at::cross_entropy_loss(scores, batch[1]), {.sync_dist = true});
    log("val_accuracy", scores.argmax(1).eq(batch[1]).to(at::kFloat).mean(), {.sync_dist = true});
  }

  Optimizers configure_optimizers() override {
    return {std::make_shared<Adam>(trained_parameters(), AdamOptions{.lr = 1e-3}),
            cosine_schedule(/*steps=*/10), Scheduler::Per::epoch};
  }

  DataLoader train_dataloader() override {
    return fashion_mnist(data_, images_, {.batch_size = 128, .shuffle = true});
  }
  std::optional<DataLoader> val_dataloader() override {
    return fashion_mnist(data_, images_, {.batch_size = 256}, MnistSplit::test);
  }

 private:
  std::string data_;
  std::int64_t images_;
  ResNet net_ = register_module("net", resnet18(/*classes=*/10));
};

int main(int argc, char** argv) {
  return run([&] {
    TrainerOptions options;
    options.max_epochs = 2;
    options.precision = "32";
    options.gradient_clip_val = 1.0;
    options.strategy = "ddp";
    options.default_root_dir = "runs/module";
    options.callbacks = {std::make_shared<LearningRateMonitor>(),
                         std::make_shared<ModelCheckpoint>(
                             ModelCheckpoint::Options{.save_top_k = 2, .monitor = "val_loss"})};
    Trainer trainer(options);
    return trainer.fit(
        std::make_shared<Classifier>(argc > 1 ? argv[1] : "", argc > 2 ? std::stol(argv[2]) : 0));
  });
}
