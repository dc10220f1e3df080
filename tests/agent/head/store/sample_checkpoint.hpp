#pragma once

#include <string>

#include "tests/support/temporary_folder.hpp"

namespace dtrain::head::testing {

// What a program writes as a checkpoint.
inline fs::path model_at(const fs::path& folder, const std::string& text = "weights") {
  dtrain::testing::write(folder / "model.safetensors", text);
  dtrain::testing::write(folder / "extra" / "state.json", "{}");
  return folder;
}

}  // namespace dtrain::head::testing
