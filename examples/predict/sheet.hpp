#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trainer/data/codecs.hpp"

// What a model says about one picture.
struct Prediction {
  std::filesystem::path file;
  dtrain::train::Image picture;
  std::string label;
  double probability = 0;
};

// One SVG file with all pictures in it, each with its file's name and what the model says, for any
// web browser. Throws dtrain::train::Error.
void write_sheet(const std::filesystem::path& path, const std::vector<Prediction>& predictions);
