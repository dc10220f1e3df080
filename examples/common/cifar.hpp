#pragma once

#include "examples/common/classifier.hpp"

// CIFAR-10, or any other data set of small colour pictures, for the programs that train on it.

// The usual augmentation: 4 pixels of padding, a random crop, a random flip.
inline Recipe cifar10_recipe(const Flags& flags, const std::string& model) {
  using namespace dtrain::train;
  Recipe recipe;
  recipe.model = model;
  recipe.train = open_images(flags.data, Split::train);
  recipe.test = open_images(flags.data, Split::test);
  if (flags.limit) {
    recipe.train = first_images(recipe.train, *flags.limit);
    recipe.test = first_images(recipe.test, *flags.limit);
  }
  Transform transform;
  transform.rows = transform.columns = 32;
  transform.mean = kCifar10Mean;
  transform.std = kCifar10Std;
  recipe.test_transform = transform;
  transform.pad = 4;
  transform.random_crop = true;
  transform.random_flip = true;
  recipe.train_transform = transform;
  return recipe;
}
