#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <type_traits>
#include <utility>

#include "trainer/core/metrics.hpp"
#include "trainer/train/late_scalars.hpp"
#include "trainer/train/session.hpp"

namespace dtrain::train {

// A measured value that may not be known yet: a number, a tensor of one element on any device, or a
// function. It is read when somebody wants the number, and not before: reading a tensor of a GPU
// waits for all that the GPU has still to do. Of a tensor it keeps the value as it is now, and not
// the graph behind it. A function is called later, on some ranks only, perhaps more than once: it
// owns what it uses, and does nothing collective.
class LateMetric {
 public:
  template <typename Number>
  requires std::is_arithmetic_v<Number> LateMetric(Number value)
      : number_(static_cast<double>(value)) {}  // NOLINT: for {{"loss", loss}}
  LateMetric(const at::Tensor& value);          // NOLINT
  template <typename Read>
  requires std::is_invocable_r_v<double, Read> LateMetric(Read read)
      : read_(std::move(read)) {}  // NOLINT

 private:
  friend Metrics read_metrics(const std::map<std::string, LateMetric>& metrics);
  double number_ = 0;
  at::Tensor tensor_;
  bool is_tensor_ = false;
  std::function<double()> read_;
};

// A tensor that is not defined has no value: a loss of an epoch that a resume had nothing left of.
// It is left out. Tensors of one device are read by one copy. Throws Error, with its name, at a
// tensor of more than one element.
Metrics read_metrics(const std::map<std::string, LateMetric>& metrics);

// {{"loss", loss}, {"lr", 0.1}}; Metrics are some, too.
class LateMetrics : public std::map<std::string, LateMetric> {
 public:
  LateMetrics() = default;
  LateMetrics(std::initializer_list<value_type> values) : map(values) {}
  LateMetrics(const Metrics& metrics) : map(metrics.begin(), metrics.end()) {}  // NOLINT
};

// Session::check_loss for losses that are read late: `every` of them at once, each with its step.
class LossCheck {
 public:
  LossCheck(Session& session, std::int64_t every) : session_(session), every_(every) {}
  LossCheck(const LossCheck&) = delete;
  LossCheck& operator=(const LossCheck&) = delete;
  void add(std::int64_t step, const at::Tensor& loss);
  // Those that were added since: before a checkpoint. Throws Error as check_loss does.
  void read();
  std::int64_t unread() const { return unread_; }

 private:
  Session& session_;
  std::int64_t every_;
  std::int64_t unread_ = 0;
  LateScalars losses_;
};

}  // namespace dtrain::train
