#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trainer/data/image_source.hpp"

namespace dtrain::train {

// The names of the folders in a folder, in order, without hidden ones. Throws Error if it cannot be
// read.
std::vector<std::string> class_folders(const std::filesystem::path& folder);

// A folder for each class, with JPEG and PNG files in it, at any depth: FOLDER/CLASS/….jpg. The
// classes are numbered by their names' order, and so are the files, as torchvision's ImageFolder
// does it. Only names are read here; a file is read and decoded when it is asked for. Links to
// files are followed, links to folders below a class are not. Throws Error when there is no class,
// or the folder of a class has no image.
//
// `classes`, in order, are those of the training, for a split that may lack some of them: labels
// are by these then, and a folder that is none of them is an Error.
Images open_image_folder(const std::filesystem::path& folder,
                         std::vector<std::string> classes = {});

}  // namespace dtrain::train
