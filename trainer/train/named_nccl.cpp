#include "trainer/train/named_nccl.hpp"

#include <ATen/core/ivalue.h>

#include <utility>

#include "trainer/comm/group.hpp"
#include "trainer/core/run.hpp"

namespace dtrain::train {
namespace {

// Gloo's names, so that a job's words do not depend on what carries them.
const char* name_of(c10d::OpType type) {
  using enum c10d::OpType;
  static constexpr std::pair<c10d::OpType, const char*> kNames[] = {
      {BROADCAST, "broadcast"},
      {ALLREDUCE, "allreduce"},
      {ALLREDUCE_COALESCED, "allreduce_coalesced"},
      {REDUCE, "reduce"},
      {ALLGATHER, "allgather"},
      {ALLGATHER_COALESCED, "allgather"},
      {_ALLGATHER_BASE, "allgather"},
      {GATHER, "gather"},
      {SCATTER, "scatter"},
      {REDUCE_SCATTER, "reduce_scatter"},
      {_REDUCE_SCATTER_BASE, "reduce_scatter"},
      {ALLTOALL, "alltoall"},
      {ALLTOALL_BASE, "alltoall"},
      {BARRIER, "barrier"},
  };
  for (const auto& [known, name] : kNames) {
    if (known == type) return name;
  }
  return "collective";
}

class NamedNccl final : public c10d::ProcessGroupNCCL {
  using Base = c10d::ProcessGroupNCCL;

 public:
  NamedNccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
            const c10::intrusive_ptr<Options>& options, std::shared_ptr<Calls> calls,
            Explain explain)
      : Base(store, rank, size, options),
        calls_(std::move(calls)),
        explain_(std::make_shared<const Explain>(std::move(explain))) {}

 protected:
  // Every collective's Work is made here, in the thread that begins it.
  c10::intrusive_ptr<WorkNCCL> initWork(at::Device& device, int rank, c10d::OpType type,
                                        bool is_between_two, const char* title,
                                        const std::vector<at::Tensor>& inputs,
                                        const std::vector<at::Tensor>& outputs,
                                        bool record) override {
    auto work = Base::initWork(device, rank, type, is_between_two, title, inputs, outputs, record);
    if (is_between_two) return work;
    std::int64_t elements = 0;
    std::uint64_t bytes = 0;
    for (const at::Tensor& tensor : inputs) {
      elements += tensor.numel();
      bytes += tensor.nbytes();
    }
    const Call call =
        calls_->begin(name_of(type), inputs.empty() ? "" : c10::toString(inputs[0].scalar_type()),
                      elements, bytes);
    // By NCCL's watchdog, whose next act after a failure is to end the process.
    work->getFutureResult()->addCallback(
        [calls = calls_, call, explain = explain_, mine = getRank(), size = getSize(),
         ends = asyncErrorHandling_ == c10d::TearDown ||
                asyncErrorHandling_ == c10d::SkipCleanUp](c10::ivalue::Future& done) {
          const auto result = static_cast<c10d::WorkResult>(done.constValue().toInt());
          if (result == c10d::WorkResult::SUCCESS) return calls->end(call);
          if (!ends) return;
          end_now(comm::CollectiveError(
              describe(call) + " failed on rank " + std::to_string(mine) + " of " +
              std::to_string(size) + ": " +
              (result == c10d::WorkResult::TIMEOUT ? "it timed out" : "NCCL's connection is lost") +
              (*explain)(call)));
        });
    return work;
  }

 private:
  std::shared_ptr<Calls> calls_;
  std::shared_ptr<const Explain> explain_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_named_nccl(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    const c10::intrusive_ptr<c10d::ProcessGroupNCCL::Options>& options,
    std::shared_ptr<Calls> calls, Explain explain) {
  return c10::make_intrusive<NamedNccl>(store, rank, size, options, std::move(calls),
                                        std::move(explain));
}

}  // namespace dtrain::train
