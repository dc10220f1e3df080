#include "trainer/comm/backend.hpp"

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <c10/core/GradMode.h>

#include <array>
#include <condition_variable>
#include <deque>
#include <functional>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "trainer/comm/allocator.hpp"
#include "trainer/comm/elements.hpp"

namespace dtrain::train::comm {
namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

constexpr std::array<std::pair<at::ScalarType, Element>, 15> kElements{{
    {at::kBool, Element::boolean},
    {at::kByte, Element::u8},
    {at::kChar, Element::i8},
    {at::kUInt16, Element::u16},
    {at::kShort, Element::i16},
    {at::kUInt32, Element::u32},
    {at::kInt, Element::i32},
    {at::kUInt64, Element::u64},
    {at::kLong, Element::i64},
    {at::kHalf, Element::f16},
    {at::kBFloat16, Element::bf16},
    {at::kFloat, Element::f32},
    {at::kDouble, Element::f64},
    {at::kComplexFloat, Element::c64},
    {at::kComplexDouble, Element::c128},
}};

// Types that are not among these are carried as bytes; reduction_of refuses to add them up.
Element carried_as(const at::Tensor& tensor) {
  return element_of(tensor.scalar_type()).value_or(Element::u8);
}

bool is_known(const at::Tensor& tensor) {
  return element_of(tensor.scalar_type()).has_value();
}

Reduction reduction_of(const c10d::ReduceOp& op, const at::Tensor& tensor) {
  Reduction reduction = Reduction::sum;
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM:
      reduction = Reduction::sum;
      break;
    case c10d::ReduceOp::AVG:
      reduction = Reduction::average;
      break;
    case c10d::ReduceOp::PRODUCT:
      reduction = Reduction::product;
      break;
    case c10d::ReduceOp::MIN:
      reduction = Reduction::min;
      break;
    case c10d::ReduceOp::MAX:
      reduction = Reduction::max;
      break;
    case c10d::ReduceOp::BAND:
      reduction = Reduction::bit_and;
      break;
    case c10d::ReduceOp::BOR:
      reduction = Reduction::bit_or;
      break;
    case c10d::ReduceOp::BXOR:
      reduction = Reduction::bit_xor;
      break;
    case c10d::ReduceOp::PREMUL_SUM:
    case c10d::ReduceOp::UNUSED:
      throw Error("shared memory: this reduction is not known");
  }
  if (!is_known(tensor) || !can_reduce(reduction, carried_as(tensor))) {
    throw Error(std::string("shared memory: cannot reduce ") + c10::toString(tensor.scalar_type()) +
                " by " + name_of(reduction));
  }
  return reduction;
}

void check(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || tensor.is_sparse() || tensor.layout() != at::kStrided) {
    throw Error("shared memory: only dense tensors of the CPU can be sent");
  }
}

const at::Tensor& only(const Tensors& tensors) {
  if (tensors.size() != 1) throw Error("shared memory: one tensor for each call");
  check(tensors[0]);
  return tensors[0];
}

std::size_t count_of(const at::Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel());
}

// A tensor's elements one after the other, and back into it.
class Flat {
 public:
  explicit Flat(const at::Tensor& tensor) : tensor_(tensor), flat_(tensor.contiguous()) {}
  const at::Tensor& get() const { return flat_; }
  void write_back() {
    if (!flat_.is_same(tensor_)) tensor_.copy_(flat_);
  }

 private:
  at::Tensor tensor_;
  at::Tensor flat_;
};

class SharedWork final : public c10d::Work {
 public:
  SharedWork(int rank, c10d::OpType type, Tensors result)
      : Work(rank, type),
        result_(std::move(result)),
        future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()))) {}

  Tensors result() override { return result_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

  void run(const std::function<void()>& body) {
    const c10::NoGradGuard no_grad;
    body();
    future_->markCompleted(c10::IValue(result_));
    finish();
  }
  void fail(const std::exception_ptr& error) {
    future_->setError(error);
    finish(error);
  }

 private:
  Tensors result_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// Runs what it is given, in order.
class Worker {
 public:
  Worker() : thread_([this] { run(); }) {}
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void add(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ends_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool ends_ = false;
  std::thread thread_;  // last: it begins at once
};

class Backend final : public c10d::Backend {
 public:
  Backend(std::shared_ptr<SharedGroup> group, bool thread)
      : c10d::Backend(group->rank(), group->size()), group_(std::move(group)) {
    if (thread) worker_ = std::make_unique<Worker>();
  }

  const std::string getBackendName() const override { return "dtrain-shared-memory"; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    const at::Tensor tensor = only(tensors);
    const Reduction reduction = reduction_of(options.reduceOp, tensor);
    return start(c10d::OpType::ALLREDUCE, tensors,
                 [=, this] { all_reduce_one(tensor, reduction); });
  }

  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override {
    std::vector<Reduction> reductions;
    for (const at::Tensor& tensor : tensors) {
      check(tensor);
      reductions.push_back(reduction_of(options.reduceOp, tensor));
    }
    return start(c10d::OpType::ALLREDUCE_COALESCED, tensors, [this, all = tensors, reductions] {
      for (std::size_t i = 0; i < all.size(); ++i) all_reduce_one(all[i], reductions[i]);
    });
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    const at::Tensor tensor = only(tensors);
    const int root = static_cast<int>(options.rootRank);
    return start(c10d::OpType::BROADCAST, tensors, [=, this] {
      Flat flat(tensor);
      group_->broadcast(flat.get().mutable_data_ptr(), flat.get().nbytes(), root,
                        carried_as(tensor));
      if (rank_ != root) flat.write_back();
    });
  }

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& /*options*/) override {
    const at::Tensor input = only(inputs);
    if (outputs.size() != 1 || outputs[0].size() != static_cast<std::size_t>(size_)) {
      throw Error("shared memory: all_gather wants one output for each rank");
    }
    const Tensors to = outputs[0];
    for (const at::Tensor& tensor : to) {
      check(tensor);
      if (tensor.numel() != input.numel() || tensor.scalar_type() != input.scalar_type()) {
        throw Error("shared memory: all_gather's outputs are not like its input");
      }
    }
    return start(c10d::OpType::ALLGATHER, outputs[0], [=, this] {
      const at::Tensor flat = input.contiguous();
      const at::Tensor all = at::empty({size_, flat.numel()}, flat.options());
      group_->all_gather(all.mutable_data_ptr(), flat.const_data_ptr(), flat.nbytes(),
                         carried_as(flat));
      for (int r = 0; r < size_; ++r) {
        to[static_cast<std::size_t>(r)].copy_(all[r].view(input.sizes()));
      }
    });
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& /*options*/) override {
    check(input);
    check(output);
    Tensors result{output};
    return start(c10d::OpType::_ALLGATHER_BASE, result,
                 [=, this] { all_gather_one(output, input); });
  }

  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& /*options*/) override {
    return start(c10d::OpType::COALESCED, outputs, [this, out = outputs, in = inputs] {
      for (std::size_t i = 0; i < in.size(); ++i) all_gather_one(out[i], in[i]);
    });
  }

  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    const at::Tensor output = only(outputs);
    if (inputs.size() != 1 || inputs[0].size() != static_cast<std::size_t>(size_)) {
      throw Error("shared memory: reduce_scatter wants one input for each rank");
    }
    for (const at::Tensor& tensor : inputs[0]) {
      check(tensor);
      if (tensor.numel() != output.numel() || tensor.scalar_type() != output.scalar_type()) {
        throw Error("shared memory: reduce_scatter's inputs are not like its output");
      }
    }
    const Reduction reduction = reduction_of(options.reduceOp, output);
    return start(c10d::OpType::REDUCE_SCATTER, outputs, [=, this, parts = inputs[0]] {
      Tensors flat;
      for (const at::Tensor& part : parts) flat.push_back(part.reshape({-1}));
      reduce_scatter_one(output, at::cat(flat), reduction);
    });
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    check(input);
    check(output);
    const Reduction reduction = reduction_of(options.reduceOp, input);
    Tensors result{output};
    return start(c10d::OpType::_REDUCE_SCATTER_BASE, result,
                 [=, this] { reduce_scatter_one(output, input, reduction); });
  }

  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override {
    std::vector<Reduction> reductions;
    for (const at::Tensor& input : inputs) {
      reductions.push_back(reduction_of(options.reduceOp, input));
    }
    return start(c10d::OpType::COALESCED, outputs, [this, out = outputs, in = inputs, reductions] {
      for (std::size_t i = 0; i < in.size(); ++i) {
        reduce_scatter_one(out[i], in[i], reductions[i]);
      }
    });
  }

  WorkPtr barrier(const c10d::BarrierOptions& /*options*/) override {
    Tensors nothing;
    return start(c10d::OpType::BARRIER, nothing, [this] { group_->barrier(); });
  }

  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return group_->last_post(rank_).sequence; }

 private:
  WorkPtr start(c10d::OpType type, const Tensors& result, std::function<void()> body) {
    auto work = c10::make_intrusive<SharedWork>(rank_, type, result);
    if (!worker_) {
      work->run(body);
      return work;
    }
    worker_->add([work, body = std::move(body)] {
      try {
        work->run(body);
      } catch (...) {
        work->fail(std::current_exception());
      }
    });
    return work;
  }

  void all_reduce_one(const at::Tensor& tensor, Reduction reduction) {
    Flat flat(tensor);
    group_->all_reduce(flat.get().mutable_data_ptr(), count_of(tensor), carried_as(tensor),
                       reduction);
    flat.write_back();
  }

  void all_gather_one(const at::Tensor& output, const at::Tensor& input) {
    if (output.numel() != input.numel() * size_ || output.scalar_type() != input.scalar_type()) {
      throw Error("shared memory: all_gather's output is not its input times the ranks");
    }
    Flat to(output);
    const at::Tensor from = input.contiguous();
    group_->all_gather(to.get().mutable_data_ptr(), from.const_data_ptr(), from.nbytes(),
                       carried_as(from));
    to.write_back();
  }

  void reduce_scatter_one(const at::Tensor& output, const at::Tensor& input, Reduction reduction) {
    if (input.numel() != output.numel() * size_ || output.scalar_type() != input.scalar_type()) {
      throw Error("shared memory: reduce_scatter's input is not its output times the ranks");
    }
    Flat to(output);
    const at::Tensor from = input.contiguous();
    group_->reduce_scatter(to.get().mutable_data_ptr(), from.const_data_ptr(), count_of(output),
                           carried_as(from), reduction);
    to.write_back();
  }

  std::shared_ptr<SharedGroup> group_;
  std::unique_ptr<Worker> worker_;  // last: its thread uses the group
};

}  // namespace

std::optional<Element> element_of(c10::ScalarType type) {
  for (const auto& [theirs, ours] : kElements) {
    if (theirs == type) return ours;
  }
  return std::nullopt;
}

SharedBackend make_shared_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                  const BackendOptions& options) {
  KeyValue keys;
  keys.set = [&](const std::string& key, const std::string& value) {
    store->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
  };
  keys.get = [&](const std::string& key) {
    const std::vector<std::uint8_t> value = store->get(key);
    return std::string(value.begin(), value.end());
  };
  keys.has = [&](const std::string& key) { return store->check({key}); };
  SharedGroup::Options group;
  group.timeout = options.timeout;
  group.join_timeout = options.join_timeout;
  group.name = options.name;
  SharedBackend result;
  result.group = SharedGroup::join(keys, rank, size, group, &result.problem);
  if (!result.group) return result;
  install_shared_allocator();
  result.backend = c10::make_intrusive<Backend>(result.group, options.thread);
  return result;
}

}  // namespace dtrain::train::comm
