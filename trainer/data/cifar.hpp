#pragma once

#include <filesystem>

#include "trainer/data/image_source.hpp"

namespace dtrain::train {

// CIFAR-10 and CIFAR-100 in their binary form: records of one label (CIFAR-100: a coarse and a
// fine one) and 3x32x32 bytes, planes one after the other.

enum class CifarKind : std::uint8_t { cifar10, cifar100 };
enum class Split : std::uint8_t { train, test };

// data_batch_1.bin … data_batch_5.bin or test_batch.bin of CIFAR-10, train.bin or test.bin of
// CIFAR-100 (its fine labels), and the classes' names if batches.meta.txt or fine_label_names.txt
// is there; in `folder` or in the one below it that the archives unpack to. Throws Error with file
// and offset: a size that is not whole records, a label that is no class.
Images read_cifar(const std::filesystem::path& folder, CifarKind kind, Split split);

// Where the files of a kind are; empty if they are not there.
std::filesystem::path find_cifar(const std::filesystem::path& folder, CifarKind kind);

}  // namespace dtrain::train
