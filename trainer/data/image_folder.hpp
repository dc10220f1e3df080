#pragma once

#include <filesystem>

#include "trainer/data/image_source.hpp"

namespace dtrain::train {

// A folder for each class, with JPEG and PNG files in it, at any depth: FOLDER/CLASS/….jpg. The
// classes are numbered by their names' order, and so are the files, as torchvision's ImageFolder
// does it. Only names are read here; a file is read and decoded when it is asked for. Links to
// files are followed, links to folders below a class are not. Throws Error when there is no class,
// or a class has no image.
Images open_image_folder(const std::filesystem::path& folder);

}  // namespace dtrain::train
