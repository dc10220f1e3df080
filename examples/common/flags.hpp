#pragma once

#include <cstdint>
#include <optional>
#include <string>

// What the image classifiers can be told on their command lines.
struct Flags {
  std::string data;  // a folder with a data set: docs/training_data.md has the formats
  std::optional<std::int64_t> limit;
  std::int64_t epochs = 1;
  std::int64_t batch_size_per_worker = 128;
  double lr = 1e-3;
  std::uint64_t seed = 0;
  int num_threads = 0;
  std::int64_t checkpoint_every = 0;  // steps
  std::string storage;
  int workers = 1;  // threads that make batches
  std::string tensorboard;
  std::string metrics_file;
  std::string precision = "32";  // or bf16: autocast
  bool skip_bad_samples = false;
};

// Reads them into `flags`, whose values are the defaults. Returns an exit code if the program is
// to end (help was asked for, or a flag is wrong).
std::optional<int> read_flags(int argc, char** argv, const std::string& description, Flags& flags);
