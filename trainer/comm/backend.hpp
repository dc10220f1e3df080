#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>

#include "trainer/comm/group.hpp"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace dtrain::train::comm {

struct BackendOptions {
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  std::chrono::milliseconds join_timeout = std::chrono::minutes(5);
  std::string name = "default";
  // Work in a thread of the backend's own, so that collectives run beside backward. With every
  // core busy it gains nothing and costs a switch for each: off by default.
  bool thread = false;
};

struct SharedBackend {
  // For ProcessGroup::setBackend(kCPU, ProcessGroup::CUSTOM, …). Null if memory cannot be shared.
  c10::intrusive_ptr<c10d::Backend> backend;
  std::shared_ptr<SharedGroup> group;  // what is beneath it
  std::string problem;                 // why there is none; the same on all ranks
};

// Collective. The ranks of one host as a c10d backend: allreduce, reduce_scatter, allgather (each
// also coalesced and on one tensor), broadcast, barrier, of contiguous and other dense CPU tensors
// of every type. Without the thread a call is finished when it returns, and its errors are thrown
// there; with it, they come from Work::wait(). Installs the shared allocator.
SharedBackend make_shared_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                  const BackendOptions& options);

}  // namespace dtrain::train::comm
