#pragma once

#include <map>
#include <memory>
#include <string>

#include "trainer/train/optimizer.hpp"

namespace dtrain::train {

// Several optimizers as one, for checkpoints: the state of each is there by the optimizer's name
// and the parameter's, "generator/net.0.weight/exp_avg", and its rate too. Each steps by itself.
class OptimizerSet final : public Optimizer {
 public:
  using Named = std::map<std::string, std::shared_ptr<Optimizer>>;

  // Throws Error when one parameter is given to two of them, and when some are shared out among
  // ranks (zero1) and others are not.
  explicit OptimizerSet(Named optimizers);

  void step() override;  // throws Error
  double momentum() const override { return 0; }
  void set_momentum(double momentum) override;  // throws Error
  std::map<std::string, at::Tensor> state() const override;
  // Throws Error that names what is missing or unknown.
  void load_state(const std::map<std::string, at::Tensor>& state) override;
  bool state_is_sharded() const override;
  std::string kind() const override;                       // "discriminator: Adam, generator: SGD"
  std::map<std::string, double> numbers() const override;  // "generator/lr"
  void load_numbers(const std::map<std::string, double>& numbers) override;

 private:
  Named optimizers_;
};

}  // namespace dtrain::train
