#pragma once

#include <string>
#include <vector>

#include "trainer/train/tensors.hpp"

namespace dtrain::train {

// What is to be written; `held` gets the tensors whose memory that is, which must outlive it.
std::vector<TensorSource> to_sources(const TensorMap& tensors, std::vector<at::Tensor>& held);

std::string describe(const at::Tensor& tensor);  // its type and shape: "Float[3, 4]"

}  // namespace dtrain::train
