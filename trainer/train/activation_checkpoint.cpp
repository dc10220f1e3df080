#include "trainer/train/activation_checkpoint.hpp"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <array>
#include <memory>
#include <optional>
#include <utility>

#include "trainer/core/error.hpp"

namespace dtrain::train {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::SavedVariableHooks;

// Where the tensors go that operations of this thread save: to the innermost one.
struct Saver {
  virtual ~Saver() = default;
  virtual std::unique_ptr<SavedVariableHooks> hooks() = 0;
};
thread_local Saver* saver = nullptr;

class UseSaver {
 public:
  explicit UseSaver(Saver* next) : before_(std::exchange(saver, next)) {}
  ~UseSaver() { saver = before_; }
  UseSaver(const UseSaver&) = delete;
  UseSaver& operator=(const UseSaver&) = delete;

 private:
  Saver* before_;
};

// autograd asks its engine for the hooks of what it saves. A process has one engine: the one that
// runs the first backward gets the threads for the GPUs, and any other has none. So it is there
// from the program's start, as Python's is from its import.
class HookingEngine final : public torch::autograd::Engine {
 public:
  ~HookingEngine() override { stop(); }  // as torch's header asks for

  static Engine& get() {
    static HookingEngine engine;
    return engine;
  }
  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    return saver == nullptr ? nullptr : saver->hooks();
  }
};

[[maybe_unused]] const bool is_installed =
    (torch::autograd::set_default_engine_stub(&HookingEngine::get), true);

class AutocastState {
 public:
  AutocastState() : caches_(at::autocast::is_autocast_cache_enabled()) {
    for (std::size_t i = 0; i < kTypes.size(); ++i) {
      on_[i] = at::autocast::is_autocast_enabled(kTypes[i]);
      dtype_[i] = at::autocast::get_autocast_dtype(kTypes[i]);
    }
  }
  void set() const {
    for (std::size_t i = 0; i < kTypes.size(); ++i) {
      at::autocast::set_autocast_enabled(kTypes[i], on_[i]);
      at::autocast::set_autocast_dtype(kTypes[i], dtype_[i]);
    }
    at::autocast::set_autocast_cache_enabled(caches_);
  }

 private:
  static constexpr std::array kTypes{at::kCPU, at::kCUDA};
  std::array<bool, kTypes.size()> on_{};
  std::array<at::ScalarType, kTypes.size()> dtype_{};
  bool caches_;
};

class GeneratorStates {
 public:
  explicit GeneratorStates(const std::vector<at::Tensor>& inputs) {
    add(c10::Device(c10::kCPU));
    for (const at::Tensor& input : inputs) {
      if (input.defined() && !input.is_cpu()) add(input.device());
    }
  }
  // As they are now, of the same devices.
  GeneratorStates now() const {
    GeneratorStates result;
    for (const auto& [device, state] : states_) result.add(device);
    return result;
  }
  void set() const {
    for (const auto& [device, state] : states_) {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      const std::lock_guard lock(generator.mutex());
      generator.set_state(state);
    }
  }

 private:
  GeneratorStates() = default;
  void add(c10::Device device) {
    for (const auto& [known, state] : states_) {
      if (known == device) return;
    }
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    states_.emplace_back(device, generator.get_state());
  }
  std::vector<std::pair<c10::Device, at::Tensor>> states_;
};

// One checkpoint: alive as long as its part of the graph.
class Frame : public std::enable_shared_from_this<Frame> {
 public:
  Frame(CheckpointedFunction function, const std::vector<at::Tensor>& inputs,
        const ActivationCheckpointOptions& options)
      : function_(std::move(function)) {
    if (options.preserve_rng_state) generators_.emplace(inputs);
    // With the hooks of a checkpoint around this one, which then drops them too.
    for (const at::Tensor& input : inputs) {
      inputs_.emplace_back(input, /*is_output=*/false);
      needs_gradient_.push_back(input.defined() && input.requires_grad());
    }
  }

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) {
    Dropping dropping(shared_from_this());
    const UseSaver use(&dropping);
    return function_(inputs);
  }

  // Of the first call's saved tensors, in their order.
  std::size_t note(const at::Tensor& tensor) {
    notes_.push_back({tensor.sizes().vec(), tensor.scalar_type()});
    return notes_.size() - 1;
  }

  // Each is given once; who asks again (retain_graph) has it computed again.
  at::Tensor take(std::size_t index) {
    if (again_.size() != notes_.size() || !again_[index].defined()) compute_again();
    return std::exchange(again_[index], at::Tensor());
  }

 private:
  struct Note {
    std::vector<std::int64_t> sizes;
    at::ScalarType type;
  };

  struct Dropped final : SavedVariableHooks {
    explicit Dropped(std::shared_ptr<Frame> its) : frame(std::move(its)) {}
    void call_pack_hook(const at::Tensor& tensor) override { index = frame->note(tensor); }
    at::Tensor call_unpack_hook() override { return frame->take(index); }
    std::shared_ptr<Frame> frame;
    std::size_t index = 0;
  };
  struct Dropping final : Saver {
    explicit Dropping(std::shared_ptr<Frame> its) : frame(std::move(its)) {}
    std::unique_ptr<SavedVariableHooks> hooks() override {
      return std::make_unique<Dropped>(frame);
    }
    std::shared_ptr<Frame> frame;
  };

  // What the second call saves is kept beside its graph, which nobody walks.
  struct Kept final : SavedVariableHooks {
    explicit Kept(std::vector<at::Tensor>& its) : list(its) {}
    void call_pack_hook(const at::Tensor& tensor) override { list.push_back(tensor.detach()); }
    at::Tensor call_unpack_hook() override {
      throw Error("checkpoint: the second call of the function may not run a backward of its own");
    }
    std::vector<at::Tensor>& list;
  };
  struct Keeping final : Saver {
    std::unique_ptr<SavedVariableHooks> hooks() override { return std::make_unique<Kept>(list); }
    std::vector<at::Tensor> list;
  };

  void compute_again() {
    std::vector<at::Tensor> inputs;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const at::Tensor input = inputs_[i].unpack();
      inputs.push_back(input.defined() ? input.detach().set_requires_grad(needs_gradient_[i])
                                       : at::Tensor());
    }
    Keeping keeping;
    {
      const c10::AutoGradMode grad(true);
      const Restored restored(*this);
      const UseSaver use(&keeping);
      static_cast<void>(function_(inputs));
    }
    bool same = keeping.list.size() == notes_.size();
    for (std::size_t i = 0; same && i < notes_.size(); ++i) {
      same = keeping.list[i].sizes() == notes_[i].sizes &&
             keeping.list[i].scalar_type() == notes_[i].type;
    }
    if (!same) {
      throw Error(
          "checkpoint: the function saved other tensors when it was called again for backward: it "
          "must do the same with the same inputs");
    }
    again_ = std::move(keeping.list);
  }

  // The world as the first call saw it, for a while.
  class Restored {
   public:
    explicit Restored(const Frame& frame) {
      if (frame.generators_) {
        generators_ = frame.generators_->now();
        frame.generators_->set();
      }
      at::autocast::increment_nesting();
      frame.autocast_.set();
    }
    ~Restored() {
      if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
      autocast_.set();
      if (generators_) generators_->set();
    }
    Restored(const Restored&) = delete;
    Restored& operator=(const Restored&) = delete;

   private:
    AutocastState autocast_;
    std::optional<GeneratorStates> generators_;
  };

  CheckpointedFunction function_;
  std::vector<SavedVariable> inputs_;
  std::vector<bool> needs_gradient_;
  AutocastState autocast_;
  std::optional<GeneratorStates> generators_;
  std::vector<Note> notes_;
  std::vector<at::Tensor> again_;
};

}  // namespace

std::vector<at::Tensor> checkpoint(const CheckpointedFunction& function,
                                   const std::vector<at::Tensor>& inputs,
                                   const ActivationCheckpointOptions& options) {
  if (!c10::GradMode::is_enabled()) return function(inputs);
  return std::make_shared<Frame>(function, inputs, options)->run(inputs);
}

at::Tensor checkpoint(const std::function<at::Tensor(const at::Tensor&)>& function,
                      const at::Tensor& input, const ActivationCheckpointOptions& options) {
  const CheckpointedFunction of_list = [function](const std::vector<at::Tensor>& inputs) {
    return std::vector<at::Tensor>{function(inputs[0])};
  };
  return train::checkpoint(of_list, std::vector<at::Tensor>{input}, options)[0];
}

at::Tensor checkpoint_sequential(torch::nn::Sequential modules, std::int64_t segments,
                                 const at::Tensor& input,
                                 const ActivationCheckpointOptions& options) {
  const auto count = static_cast<std::int64_t>(modules->size());
  if (segments < 1 || segments > count) {
    throw Error("checkpoint_sequential: " + std::to_string(segments) + " segments of " +
                std::to_string(count) + " modules");
  }
  const auto run = [chain = modules.ptr()](std::int64_t begin, std::int64_t end, at::Tensor x) {
    for (std::int64_t i = begin; i < end; ++i) {
      x = (chain->begin() + i)->any_forward(std::move(x)).get<at::Tensor>();
    }
    return x;
  };
  const std::int64_t size = count / segments;
  at::Tensor x = input;
  for (std::int64_t segment = 0; segment + 1 < segments; ++segment) {
    const std::int64_t begin = segment * size;
    x = checkpoint([=](const at::Tensor& in) { return run(begin, begin + size, in); }, x, options);
  }
  return run((segments - 1) * size, count, x);
}

}  // namespace dtrain::train
