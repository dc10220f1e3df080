#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "trainer/train/calls.hpp"

namespace dtrain::train {

// Gloo, whose errors say which collective failed, on which rank, and what `explain` adds:
//
//     allreduce #12 (4096 Float) failed on rank 0 of 2: Timed out …; the slowest is rank 1: …
//
// They come as comm::CollectiveError, from Work::wait() and from the work's future. Each call is
// noted in `calls`.
c10::intrusive_ptr<c10d::Backend> make_named_gloo(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    const c10::intrusive_ptr<c10d::ProcessGroupGloo::Options>& options,
    std::shared_ptr<Calls> calls, Explain explain);

}  // namespace dtrain::train
