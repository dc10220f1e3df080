#include "trainer/train/ddp_reducer.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "trainer/comm/allocator.hpp"
#include "trainer/core/error.hpp"

namespace dtrain::train {
namespace {

// Sends a bucket in 16 bits. The average is taken before it is rounded, so that sums of many ranks
// stay within fp16's range.
class HalfHook final : public c10d::CommHookInterface {
 public:
  HalfHook(Group group, at::ScalarType type) : group_(std::move(group)), type_(type) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    const at::Tensor& full = bucket.getBuffer();
    at::Tensor& half = halves_[bucket.getIndex()];
    if (!half.defined() || half.numel() != full.numel()) {
      const comm::SharedTensors in_shared_memory;
      half = at::empty({full.numel()}, full.options().dtype(type_));
    }
    half.copy_(at::div(full, group_->getSize()));
    std::vector<at::Tensor> tensors{half};
    const at::Tensor sum = half;
    return group_->allreduce(tensors)->getFuture()->then(
        [full, sum](c10::ivalue::Future& done) -> c10::IValue {
          if (done.hasError()) std::rethrow_exception(done.exception_ptr());
          const c10::NoGradGuard no_grad;
          at::Tensor result = full;
          result.copy_(sum);
          return result;
        },
        c10::TensorType::get());
  }

  at::Tensor parseHookResult(const c10::IValue& result) override { return result.toTensor(); }

 private:
  Group group_;
  at::ScalarType type_;
  std::unordered_map<std::size_t, at::Tensor> halves_;  // by bucket
};

// Leaves each rank its own part of the averages. Without a thread of their own, collectives are
// done when they return.
class ShardHook final : public c10d::CommHookInterface {
 public:
  explicit ShardHook(Sharding sharding) : sharding_(std::move(sharding)) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    at::Tensor flat = bucket.getBuffer();
    const bool done = sharding_.shards->reduce(flat, bucket.getParameters(), *sharding_.ranks);
    if (done && sharding_.memory) sharding_.memory->release(flat);
    auto future = c10::make_intrusive<c10::ivalue::Future>(
        c10::TensorType::get(),
        flat.is_cpu() ? std::vector<c10::Device>{} : std::vector<c10::Device>{flat.device()});
    future->markCompleted(c10::IValue(flat));
    return future;
  }

  at::Tensor parseHookResult(const c10::IValue& result) override { return result.toTensor(); }

 private:
  Sharding sharding_;
};

// The constructor grows arguments from release to release; take the form that this one has.
template <typename Reducer>
std::unique_ptr<Reducer> construct(ReducerArguments a, const DdpOptions& o) {
  constexpr bool kSkipUnused = false;
  constexpr bool kPythonReducer = false;
  const std::vector<std::int64_t> caps{};
  if constexpr (requires {
                  Reducer(a.parameters, a.buckets, a.group, a.expect_sparse, o.bucket_bytes,
                          o.find_unused_parameters, o.gradient_as_bucket_view, a.names,
                          o.first_bucket_bytes, kSkipUnused, kPythonReducer, caps);
                }) {  // 2.11 and later, which default what comes after it
    return std::make_unique<Reducer>(std::move(a.parameters), std::move(a.buckets),
                                     std::move(a.group), std::move(a.expect_sparse), o.bucket_bytes,
                                     o.find_unused_parameters, o.gradient_as_bucket_view,
                                     std::move(a.names), o.first_bucket_bytes, kSkipUnused,
                                     kPythonReducer, caps);
  } else {  // without the list of caps
    return std::make_unique<Reducer>(std::move(a.parameters), std::move(a.buckets),
                                     std::move(a.group), std::move(a.expect_sparse), o.bucket_bytes,
                                     o.find_unused_parameters, o.gradient_as_bucket_view,
                                     std::move(a.names), o.first_bucket_bytes, kSkipUnused,
                                     kPythonReducer);
  }
}

struct Sink : torch::autograd::Function<Sink> {
  using Begins = std::shared_ptr<std::function<void()>>;

  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const Begins& begins, at::TensorList outputs) {
    context->set_materialize_grads(false);
    context->saved_data["begins"] = c10::IValue::make_capsule(c10::make_intrusive<Holder>(begins));
    torch::autograd::variable_list clones;
    for (const at::Tensor& output : outputs) clones.push_back(output.clone());
    return clones;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto holder = context->saved_data["begins"].toCapsule();
    const Begins& begins = static_cast<Holder&>(*holder).begins;
    if (*begins) (*begins)();
    gradients.insert(gradients.begin(), at::Tensor());  // for `begins`
    return gradients;
  }

 private:
  struct Holder : torch::CustomClassHolder {
    explicit Holder(Begins its) : begins(std::move(its)) {}
    Begins begins;
  };
};

}  // namespace

std::unique_ptr<DdpReducer> make_reducer(const ReducerArguments& arguments,
                                         const DdpOptions& options) {
  const comm::SharedTensors in_shared_memory;
  auto reducer = construct<DdpReducer>(arguments, options);
  reducer->let_graphs_differ();
  if (options.static_graph) reducer->set_static_graph();
  if (options.gradient_type != GradientType::as_it_is) {
    const bool bf16 = options.gradient_type == GradientType::bf16;
    reducer->register_comm_hook(
        std::make_unique<HalfHook>(arguments.group, bf16 ? at::kBFloat16 : at::kHalf));
  }
  if (arguments.sharding.shards) {
    reducer->register_comm_hook(std::make_unique<ShardHook>(arguments.sharding));
    if (arguments.sharding.memory) arguments.sharding.memory->expect(reducer->buckets());
  }
  return reducer;
}

BucketIndices buckets_of(const ReducerArguments& arguments, const std::vector<std::int64_t>& order,
                         const std::vector<std::size_t>& limits) {
  std::vector<at::Tensor> parameters;
  for (const std::int64_t index : order) {
    parameters.push_back(arguments.parameters[static_cast<std::size_t>(index)]);
  }
  return std::get<0>(
      c10d::compute_bucket_assignment_by_size(parameters, limits, arguments.expect_sparse, order));
}

std::vector<at::Tensor> sink(std::vector<at::Tensor> outputs, std::function<void()> begins) {
  // What has no graph behind it has no place in ours.
  std::vector<at::Tensor> inputs;
  for (const at::Tensor& output : outputs) {
    if (output.defined() && output.grad_fn() != nullptr) inputs.push_back(output);
  }
  if (inputs.empty()) return outputs;
  const auto shared = std::make_shared<std::function<void()>>(std::move(begins));
  const std::vector<at::Tensor> passed = Sink::apply(shared, at::TensorList(inputs));
  std::size_t next = 0;
  for (at::Tensor& output : outputs) {
    if (output.defined() && output.grad_fn() != nullptr) output = passed[next++];
  }
  return outputs;
}

}  // namespace dtrain::train
