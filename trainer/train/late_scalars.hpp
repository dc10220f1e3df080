#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace dtrain::train {

// Numbers that a device is still computing, read later and all together: one copy and one wait for
// as many as there are, so that a training step waits for none of them. Each is handed to its
// `use` as item<double>() would have given it, in the order of add(). One thread.
class LateScalars {
 public:
  using Use = std::function<void(double)>;

  // Takes a copy of the value as it is now: what happens to the tensor later is no matter. Throws
  // Error unless it is one number. Reads by itself when thousands wait, so that they need no memory
  // to speak of.
  void add(const at::Tensor& value, Use use);
  // A value that is known: used at once if nothing waits before it.
  void add(double value, Use use);
  // What a use throws goes through; those behind it are lost then.
  void read();
  // What waits is not read any more.
  void forget() { waiting_.clear(); }

 private:
  struct Waiting {
    at::Tensor tensor;  // undefined: `value` is it
    double value = 0;
    Use use;
  };
  std::vector<Waiting> waiting_;
};

}  // namespace dtrain::train
