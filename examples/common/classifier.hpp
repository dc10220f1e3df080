#pragma once

#include <functional>
#include <memory>
#include <string>

#include "examples/common/flags.hpp"
#include "trainer/trainer.hpp"

// What the image classifiers have in common, with the library's functions.

// What is trained on, and how its pixels become numbers.
struct Recipe {
  std::string model;  // its name, for examples/predict
  dtrain::train::Images train;
  dtrain::train::Images test;
  dtrain::train::Transform train_transform;
  dtrain::train::Transform test_transform;
  // A batch of one image cannot be trained on, for batch norm has no variance of one value: where
  // an epoch's last one would be, it is left out.
  bool needs_two = false;
};

// MNIST or FashionMNIST, for the two small examples.
Recipe mnist_recipe(const Flags& flags, const std::string& model);

// init() and the seed as the flags say; checkpoints tell examples/predict about the model.
void begin(const Flags& flags, const Recipe& recipe);

struct Loaders {
  dtrain::train::DataLoader train;
  dtrain::train::DataLoader test;
};
Loaders prepare_loaders(const Flags& flags, const Recipe& recipe);

// A prepared model: images to the classes' scores.
using Classifier = std::function<at::Tensor(const at::Tensor& images)>;

// Trains, tests after each epoch on all test images, says how it went, and shuts down. Returns what
// main() should. The scheduler, if there is one, counts steps.
int fit(const Classifier& model, dtrain::train::Optimizer& optimizer, const Loaders& loaders,
        const Flags& flags, dtrain::train::Scheduler* scheduler = nullptr);
