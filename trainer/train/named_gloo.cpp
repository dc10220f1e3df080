#include "trainer/train/named_gloo.hpp"

#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <chrono>
#include <exception>
#include <optional>
#include <utility>

#include "trainer/comm/group.hpp"

namespace dtrain::train {
namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

// The first line: below it c10 puts a stack.
std::string message_of(const std::exception_ptr& error) {
  std::string text;
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    text = known.what();
  } catch (...) {
    text = "an exception of unknown type";
  }
  return text.substr(0, text.find('\n'));
}

// A call's end: who waits for it is told what failed.
class Naming {
 public:
  Naming(int rank, int size, const Call& call, std::shared_ptr<const Explain> explain)
      : rank_(rank), size_(size), call_(call), explain_(std::move(explain)) {}

  std::exception_ptr operator()(const std::exception_ptr& error) const {
    return std::make_exception_ptr(comm::CollectiveError(
        describe(call_) + " failed on rank " + std::to_string(rank_) + " of " +
        std::to_string(size_) + ": " + message_of(error) + (*explain_)(call_)));
  }

 private:
  int rank_;
  int size_;
  Call call_;
  std::shared_ptr<const Explain> explain_;
};

class NamedWork final : public c10d::Work {
 public:
  NamedWork(WorkPtr inside, Naming naming, std::shared_ptr<Calls> calls)
      : Work(-1, c10d::OpType::UNKNOWN),
        inside_(std::move(inside)),
        naming_(std::move(naming)),
        calls_(std::move(calls)) {}

  bool isCompleted() override { return inside_->isCompleted(); }
  bool isSuccess() const override { return inside_->isSuccess(); }
  std::exception_ptr exception() const override { return inside_->exception(); }
  int sourceRank() const override { return inside_->sourceRank(); }
  Tensors result() override { return inside_->result(); }
  void synchronize() override { inside_->synchronize(); }
  void abort() override { inside_->abort(); }
  std::uint64_t getSequencenumber() const override { return inside_->getSequencenumber(); }

  bool wait(std::chrono::milliseconds timeout) override {
    const auto since = std::chrono::steady_clock::now();
    try {
      const bool done = inside_->wait(timeout);
      calls_->add_wait(since);
      return done;
    } catch (...) {
      std::rethrow_exception(naming_(std::current_exception()));
    }
  }

  FuturePtr getFuture() override {
    if (future_) return future_;
    const FuturePtr theirs = inside_->getFuture();
    future_ = c10::make_intrusive<c10::ivalue::Future>(theirs->elementType());
    theirs->addCallback([mine = future_, naming = naming_](c10::ivalue::Future& done) {
      if (done.hasError()) {
        mine->setError(naming(done.exception_ptr()));
      } else {
        mine->markCompleted(done.constValue());
      }
    });
    return future_;
  }

 private:
  WorkPtr inside_;
  Naming naming_;
  std::shared_ptr<Calls> calls_;
  FuturePtr future_;
};

class NamedGloo final : public c10d::ProcessGroupGloo {
  using Base = c10d::ProcessGroupGloo;

 public:
  NamedGloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
            const c10::intrusive_ptr<Options>& options, std::shared_ptr<Calls> calls,
            Explain explain)
      : Base(store, rank, size, options),
        calls_(std::move(calls)),
        explain_(std::make_shared<const Explain>(std::move(explain))) {}

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return named("broadcast", tensors, [&] { return Base::broadcast(tensors, options); });
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return named("allreduce", tensors, [&] { return Base::allreduce(tensors, options); });
  }
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override {
    return named("allreduce_coalesced", tensors,
                 [&] { return Base::allreduce_coalesced(tensors, options); });
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return named("reduce", tensors, [&] { return Base::reduce(tensors, options); });
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override {
    return named("allgather", inputs, [&] { return Base::allgather(outputs, inputs, options); });
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override {
    return named("gather", inputs, [&] { return Base::gather(outputs, inputs, options); });
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override {
    return named("scatter", outputs, [&] { return Base::scatter(outputs, inputs, options); });
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return named("barrier", {}, [&] { return Base::barrier(options); });
  }

 private:
  template <typename Begin>
  WorkPtr named(const char* operation, const Tensors& tensors, Begin begin) {
    std::int64_t elements = 0;
    std::uint64_t bytes = 0;
    for (const at::Tensor& tensor : tensors) {
      elements += tensor.numel();
      bytes += tensor.nbytes();
    }
    const Call call = calls_->begin(
        operation, tensors.empty() ? "" : c10::toString(tensors[0].scalar_type()), elements, bytes);
    Naming naming(getRank(), getSize(), call, explain_);
    WorkPtr work;
    try {
      work = begin();
    } catch (...) {
      calls_->end(call);
      std::rethrow_exception(naming(std::current_exception()));
    }
    work->getFuture()->addCallback(
        [calls = calls_, call](c10::ivalue::Future&) { calls->end(call); });
    time_backward();
    return c10::make_intrusive<NamedWork>(std::move(work), std::move(naming), calls_);
  }

  // In a backward the reducer begins calls and waits for their futures, not by us, at the end, when
  // nothing is left to compute: in a callback that comes behind our first, and before our second.
  void time_backward() {
    const int backward = torch::autograd::get_current_graph_task_id();
    if (backward < 0 || std::exchange(timed_, backward) == backward) return;
    auto& engine = torch::autograd::Engine::get_default_engine();
    engine.queue_callback([&engine, calls = calls_] {
      engine.queue_callback([calls, since = std::chrono::steady_clock::now(),
                             before = calls->waited()] { calls->add_wait(since, before); });
    });
  }

  std::shared_ptr<Calls> calls_;
  std::shared_ptr<const Explain> explain_;
  int timed_ = -1;  // the backward whose end is timed
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_named_gloo(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    const c10::intrusive_ptr<c10d::ProcessGroupGloo::Options>& options,
    std::shared_ptr<Calls> calls, Explain explain) {
  return c10::make_intrusive<NamedGloo>(store, rank, size, options, std::move(calls),
                                        std::move(explain));
}

}  // namespace dtrain::train
