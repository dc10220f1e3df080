#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "trainer/checkpoint/safetensors.hpp"
#include "trainer/train/tensors.hpp"

namespace dtrain::train {

// Files of tensors, by file name.
using TensorFiles = std::map<std::string, TensorMap>;

// A copy of tensors in memory that is there before it is needed: a checkpoint stops the training
// for as long as copying takes, and no longer. The first copy into fresh memory would take ten
// times as long, nearly all of it page faults; reserve() has them behind it.
//
// One copy at a time. While another thread reads sources(), nobody else calls anything.
class Snapshot {
 public:
  // Memory for these tensors, touched. Pinned, if `pinned`, so that a GPU writes to it directly.
  void reserve(const TensorFiles& files, bool pinned = false);
  // Copies them, on ATen's threads, and waits for the device. Reserves what is missing.
  void take(const TensorFiles& files, bool pinned = false);

  // The copies, as write_safetensors wants them, valid until the next take().
  const std::map<std::string, std::vector<TensorSource>>& sources() const { return sources_; }
  std::size_t bytes() const { return used_; }

 private:
  at::Tensor memory_;  // bytes
  std::size_t used_ = 0;
  std::map<std::string, std::vector<TensorSource>> sources_;
};

// Splits what several ranks hold alike, so that each tensor is written by one of them and all
// write about as much: the files of this rank. Every rank finds the same split by itself. The
// file in `whole` stays with rank 0 as it is.
TensorFiles share_of_rank(const TensorFiles& files, const std::string& whole, int rank, int ranks);

}  // namespace dtrain::train
