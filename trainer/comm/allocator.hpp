#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

namespace dtrain::train::comm {

// Makes LibTorch's CPU allocator one that can put tensors into this process's SharedHeap: only
// those that a thread asks for while a SharedTensors of its own lives; all others go where they
// always went. Called once per process, by the first shared backend; later calls do nothing.
void install_shared_allocator();

// While one lives, CPU tensors that this thread makes lie in the shared heap (as long as it has
// room), where peers reduce them in place. Nothing changes without install_shared_allocator().
class SharedTensors {
 public:
  SharedTensors();
  ~SharedTensors();
  SharedTensors(const SharedTensors&) = delete;
  SharedTensors& operator=(const SharedTensors&) = delete;

 private:
  bool before_;
};

// Whether all of a contiguous tensor lies there.
bool is_shared(const at::Tensor& tensor);

}  // namespace dtrain::train::comm
