#pragma once

#include <vector>

#include "launcher/tune/domain.hpp"
#include "launcher/tune/random.hpp"

// A mixture of kernels over points of several parameters, one kernel a point and one for the whole
// space (the prior): Optuna's _ParzenEstimator, with its bandwidths and weights.
namespace dtrain::tune {

// Where a value, by Domain::position(), stands for the kernels: a logarithm for a logarithmic
// domain, the part of the distribution below it for a normal one, the index for a choice. And back.
double kernel_place(const Domain& domain, double position);
nlohmann::json kernel_value(const Domain& domain, double place);

class Parzen {
 public:
  // A point has a place for each domain; the oldest first, for old ones count less. The domains are
  // not kept.
  Parzen(const std::vector<const Domain*>& domains, const std::vector<std::vector<double>>& points);

  // Always a place of a value that there is.
  std::vector<double> draw(Stream& chance) const;
  double log_density(const std::vector<double>& point) const;

 private:
  struct Kernel {
    double mean = 0;
    double width = 0;
    double scale = 0;  // what of the normal distribution lies within the bounds, as a logarithm,
                       // and the logarithm of the width where there are no steps
  };
  struct Dimension {
    double low = 0, high = 0;    // of places, half a step beyond the values
    double step = 0;             // of values
    double least = 0, most = 0;  // values
    bool logarithmic = false;
    std::size_t choices = 0;       // of a choice; 0: it is one of numbers
    double chosen = 0, other = 0;  // of a choice: the logarithms of a kernel's weights
    double densest = 0;            // no kernel has a larger log_density() anywhere
    std::vector<Kernel> kernels;   // of a choice: `mean` is the index; the last is the prior
  };
  struct Span {
    double left = 0, right = 0;  // of what is rounded to a place; without steps both are the place
  };

  static Dimension dimension(const Domain& domain, const std::vector<double>& places);
  static void set_widths(Dimension& dimension, const std::vector<double>& places);
  static double draw_choice(const Dimension& dimension, std::size_t kernel, Stream& chance);
  static Span span(const Dimension& dimension, double place);
  static double log_density(const Dimension& dimension, std::size_t kernel, Span span);

  std::vector<double> weights_;  // of the kernels, they add up to 1
  std::vector<double> log_weights_;
  std::vector<Dimension> dimensions_;
};

}  // namespace dtrain::tune
