#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dtrain::train {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

// The parameters of a model that need a gradient, by name, each once. For a part of a model that
// is trained beside other parts: `prefix` and a dot come before each name.
std::vector<NamedParameter> named_parameters(const torch::nn::Module& module,
                                             const std::string& prefix = "");

// Elements [begin, begin + length) of a parameter, in the order of its memory.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t length = 0;
};
// A view of those of a dense tensor, of one dimension; with all its elements in its own shape.
at::Tensor elements_of(const at::Tensor& tensor, const ElementRange& range);

// Forgets all gradients of a model, the cheapest way that also suits DDP's bucket views.
void zero_grad(torch::nn::Module& module);

// Parameters that are trained in one way.
struct ParameterGroup {
  std::vector<NamedParameter> parameters;
  double lr_scale = 1;                 // its rate is the optimizer's times this
  std::optional<double> weight_decay;  // instead of the optimizer's
};

// The usual two groups: what multiplies (two dimensions and more) decays, while biases, norms and
// other vectors do not. No group is empty. `prefix` as for named_parameters.
std::vector<ParameterGroup> decay_groups(const torch::nn::Module& module,
                                         const std::string& prefix = "");

// An optimizer that updates all parameters in one fused pass, several times faster on a CPU than
// torch::optim's loop of single operations, and keeps its state by the parameters' names, with
// Python torch.optim's keys ("step", "exp_avg", …), so that it can be saved and moved.
//
// The state exists from the start, so that saving before the first step is no special case.
// Parameters without a gradient are left alone. One thread at a time.
class Optimizer {
 public:
  // Throws Error when there is nothing to train, one parameter comes twice, or two have one name:
  // the state is kept by name.
  explicit Optimizer(std::vector<ParameterGroup> groups);
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  virtual void step() = 0;
  // Forgets the gradients, the cheapest way that also suits DDP's bucket views.
  virtual void zero_grad();

  // What step() takes on this rank, with its gradients: parameters(), or this rank's parts of them
  // where gradients are sharded (ZeroOptimizer).
  virtual const std::vector<NamedParameter>& stepped() { return parameters_; }
  // The 2-norm of all gradients as one vector. Collective where gradients are sharded, and with the
  // same bits as where they are not.
  virtual double gradient_norm();

  double lr() const { return lr_; }
  void set_lr(double lr) { lr_ = lr; }
  // What a one-cycle schedule moves: SGD's momentum, Adam's beta1.
  virtual double momentum() const = 0;
  virtual void set_momentum(double momentum) = 0;

  // "NAME/KEY" -> tensor. The tensors are the optimizer's own: copy them to keep them.
  virtual std::map<std::string, at::Tensor> state() const;
  // Copies into its own tensors. Throws Error that names what is missing, unknown, or of another
  // shape or type; nothing is changed then.
  virtual void load_state(const std::map<std::string, at::Tensor>& state);

  // The state as this rank has it, to be put back in this process. Of most it is the same as above.
  virtual std::map<std::string, at::Tensor> own_state() const { return state(); }
  virtual void load_own_state(const std::map<std::string, at::Tensor>& state) { load_state(state); }

  // True if state() holds this rank's part only, and the other ranks hold the rest.
  virtual bool state_is_sharded() const { return false; }

  // Schedulers that move its rate and that no checkpoint keeps (Scheduler::set_kept).
  int unkept_schedulers() const { return *unkept_schedulers_; }

  // What it trains, in the order of its groups.
  const std::vector<NamedParameter>& parameters() const { return parameters_; }

  // True if each parameter's update needs nothing of the other parameters, so that ranks can share
  // them out (ZeroOptimizer). An optimizer of one's own says so by overriding it.
  virtual bool updates_apart() const { return false; }
  // True if each element's update needs nothing of the other elements either: then a parameter can
  // be cut, and all ranks have equal shares.
  virtual bool updates_elementwise() const { return false; }
  // Forgets the other parameters, elements, and their state: what is left may be nothing. From here
  // on it has tensors of its own that lie in the parameters' memory, each with its own gradient.
  void keep_only(
      const std::function<std::optional<ElementRange>(const std::string& name)>& range_of);

  // What else makes it what it is: its kind and its numbers (lr, betas, …).
  virtual std::string kind() const = 0;
  virtual std::map<std::string, double> numbers() const = 0;
  // Of a checkpoint's numbers, what moves in a training: the rate. Throws Error where it is
  // missing.
  virtual void load_numbers(const std::map<std::string, double>& numbers);

 protected:
  struct Slot {
    std::string key;
    std::vector<at::Tensor> tensors;  // one for each parameter
  };
  // A group's parameters are one piece of parameters_.
  struct Group {
    std::size_t begin = 0;
    std::size_t end = 0;
    double lr_scale = 1;
    std::optional<double> weight_decay;
  };
  // The gradients and what belongs to them, for those parameters of a group that have one.
  struct Active {
    std::vector<at::Tensor> parameters;
    std::vector<at::Tensor> gradients;
    std::vector<std::vector<at::Tensor>> slots;  // as in slots_
  };
  Active active(const Group& group) const;
  std::size_t add_slot(const std::string& key);  // like the parameters, zeros
  std::size_t add_step_counter();                // one float each, key "step"

  double lr_ = 0;
  std::vector<NamedParameter> parameters_;  // of all groups
  std::vector<Group> groups_;
  std::vector<Slot> slots_;

 private:
  friend class LrScheduler;
  std::shared_ptr<int> unkept_schedulers_ = std::make_shared<int>(0);
};

// All parameters as one group.
std::vector<ParameterGroup> one_group(std::vector<NamedParameter> parameters);

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;
};

// Adam; weight decay is added to the gradient.
class Adam : public Optimizer {
 public:
  Adam(std::vector<NamedParameter> parameters, AdamOptions options)
      : Adam(one_group(std::move(parameters)), options) {}
  Adam(std::vector<ParameterGroup> groups, AdamOptions options)
      : Adam(std::move(groups), options, false) {}
  void step() override;
  double momentum() const override { return options_.beta1; }
  void set_momentum(double momentum) override { options_.beta1 = momentum; }
  bool updates_apart() const override { return true; }
  bool updates_elementwise() const override { return true; }
  std::string kind() const override { return "Adam"; }
  std::map<std::string, double> numbers() const override;

 protected:
  Adam(std::vector<ParameterGroup> groups, AdamOptions options, bool decoupled);

 private:
  AdamOptions options_;
  bool decoupled_;
};

// With torch.optim.AdamW's defaults.
struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  bool amsgrad = false;
};

// AdamW; weight decay shrinks the parameter itself.
class AdamW : public Adam {
 public:
  AdamW(std::vector<NamedParameter> parameters, AdamWOptions options)
      : AdamW(one_group(std::move(parameters)), options) {}
  AdamW(std::vector<ParameterGroup> groups, AdamWOptions o)
      : Adam(std::move(groups),
             AdamOptions{o.lr, o.beta1, o.beta2, o.eps, o.weight_decay, o.amsgrad}, true) {}
  std::string kind() const override { return "AdamW"; }
};

struct SgdOptions {
  double lr = 1e-2;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
};

class Sgd : public Optimizer {
 public:
  Sgd(std::vector<NamedParameter> parameters, SgdOptions options)
      : Sgd(one_group(std::move(parameters)), options) {}
  Sgd(std::vector<ParameterGroup> groups, SgdOptions options);
  void step() override;
  double momentum() const override { return options_.momentum; }
  // Throws Error if it was made without momentum: there is no buffer for it.
  void set_momentum(double momentum) override;
  bool updates_apart() const override { return true; }
  bool updates_elementwise() const override { return true; }
  std::string kind() const override { return "SGD"; }
  std::map<std::string, double> numbers() const override;

 private:
  SgdOptions options_;
};

struct RmsPropOptions {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
};

class RmsProp : public Optimizer {
 public:
  RmsProp(std::vector<NamedParameter> parameters, RmsPropOptions options)
      : RmsProp(one_group(std::move(parameters)), options) {}
  RmsProp(std::vector<ParameterGroup> groups, RmsPropOptions options);
  void step() override;
  double momentum() const override { return options_.momentum; }
  // Throws Error if it was made without momentum: there is no buffer for it.
  void set_momentum(double momentum) override;
  bool updates_apart() const override { return true; }
  bool updates_elementwise() const override { return true; }
  std::string kind() const override { return "RMSprop"; }
  std::map<std::string, double> numbers() const override;

 private:
  RmsPropOptions options_;
  std::size_t momentum_buffer_ = 0;  // its slots
  std::size_t gradient_average_ = 0;
};

struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0;
  double weight_decay = 0;
  double initial_accumulator_value = 0;
  double eps = 1e-10;
};

class Adagrad : public Optimizer {
 public:
  Adagrad(std::vector<NamedParameter> parameters, AdagradOptions options)
      : Adagrad(one_group(std::move(parameters)), options) {}
  Adagrad(std::vector<ParameterGroup> groups, AdagradOptions options);
  void step() override;
  double momentum() const override { return 0; }
  void set_momentum(double momentum) override;  // throws Error: it has none
  bool updates_apart() const override { return true; }
  bool updates_elementwise() const override { return true; }
  std::string kind() const override { return "Adagrad"; }
  std::map<std::string, double> numbers() const override;

 private:
  AdagradOptions options_;
};

}  // namespace dtrain::train
