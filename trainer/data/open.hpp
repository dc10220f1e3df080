#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "trainer/data/cifar.hpp"
#include "trainer/data/image_source.hpp"

namespace dtrain::train {

enum class DataFormat : std::uint8_t { idx, cifar10, cifar100, shards, image_folder };

std::string to_string(DataFormat format);

// What a folder holds, by the names in it: MNIST's or CIFAR's files, tar files, else a folder for
// each class (perhaps below train/ and test/ or val/). Empty if it is none of them.
std::optional<DataFormat> detect_format(const std::filesystem::path& folder);

// True if there is a test split as well. Otherwise Split::test is an Error.
bool has_test_split(const std::filesystem::path& folder, DataFormat format);

// Opens a data set of any format. Image folders and shards have their splits, if any, in train/
// and in test/, or in val/ where test/ is not there or has not the classes of train/ (of shards:
// has none). A test split's labels are by the classes of train/, of which it may lack some. Throws
// Error.
Images open_images(const std::filesystem::path& folder, DataFormat format, Split split);
Images open_images(const std::filesystem::path& folder, Split split);

}  // namespace dtrain::train
