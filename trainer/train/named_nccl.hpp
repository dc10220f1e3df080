#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "trainer/train/calls.hpp"

namespace dtrain::train {

// NCCL, each of whose collectives is noted in `calls`: begun when it is handed to the GPU, ended
// when NCCL's watchdog has seen that the GPU is done with it, at most some 100 ms later.
//
// When one has failed or timed out, the process ends as for an error that leaves run()'s body
// (end_now in run.hpp), before NCCL itself ends it with SIGABRT; unless
// TORCH_NCCL_ASYNC_ERROR_HANDLING says that the process is to live:
//
//     allreduce #12 (4096 Float) failed on rank 0 of 2: it timed out; the slowest is rank 1: …
c10::intrusive_ptr<c10d::Backend> make_named_nccl(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    const c10::intrusive_ptr<c10d::ProcessGroupNCCL::Options>& options,
    std::shared_ptr<Calls> calls, Explain explain);

}  // namespace dtrain::train
