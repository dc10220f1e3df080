#include "launcher/tune/parzen.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "launcher/tune/numeric.hpp"

namespace dtrain::tune {
namespace {

constexpr std::size_t kFull = 25;   // so many of the newest points have their whole weight
constexpr double kNarrowest = 100;  // a kernel is not narrower than the range by this,
constexpr double kNarrowing = 1.2;  // nor by this power of how many there are (Optuna: 1)
constexpr double kNegligible = 60;  // a logarithm
constexpr double kImpossible = -std::numeric_limits<double>::infinity();

// The newest kFull count 1, older ones less, down to 1/n.
std::vector<double> point_weights(std::size_t n) {
  std::vector<double> weights(n, 1.0);
  if (n <= kFull) return weights;
  const std::size_t ramp = n - kFull;
  const double first = 1.0 / static_cast<double>(n);
  for (std::size_t i = 0; i < ramp; ++i) {
    weights[i] = ramp == 1
                     ? first
                     : first + (1 - first) * static_cast<double>(i) / static_cast<double>(ramp - 1);
  }
  return weights;
}

// The part of a normal distribution between two bounds; in the left tail, where nothing is lost.
double mass(double a, double b) {
  return a > 0 ? normal_cdf(-a) - normal_cdf(-b) : normal_cdf(b) - normal_cdf(a);
}

}  // namespace

double kernel_place(const Domain& domain, double position) {
  if (domain.normal()) {
    const double part = normal_cdf((position - domain.low) / domain.high);
    return std::clamp(part, 1e-12, 1 - 1e-12);
  }
  return domain.logarithmic() ? natural_log(position) : position;
}

nlohmann::json kernel_value(const Domain& domain, double place) {
  if (domain.kind == Domain::Kind::choice) return domain.values[static_cast<std::size_t>(place)];
  if (domain.normal()) return domain.at(place);
  return domain.nearest_to(domain.logarithmic() ? natural_exp(place) : place);
}

Parzen::Parzen(const std::vector<const Domain*>& domains,
               const std::vector<std::vector<double>>& points) {
  weights_ = point_weights(points.size());
  weights_.push_back(1);
  const double sum = std::accumulate(weights_.begin(), weights_.end(), 0.0);
  for (double& weight : weights_) {
    weight /= sum;
    log_weights_.push_back(natural_log(weight));
  }
  for (std::size_t i = 0; i < domains.size(); ++i) {
    std::vector<double> places;
    for (const std::vector<double>& point : points) places.push_back(point[i]);
    dimensions_.push_back(dimension(*domains[i], places));
  }
}

Parzen::Dimension Parzen::dimension(const Domain& domain, const std::vector<double>& places) {
  Dimension made;
  if (domain.kind == Domain::Kind::choice) {
    made.choices = domain.values.size();
    // Each kernel: 1 for what was chosen, and the prior's weight spread over all.
    const double spread = 1.0 / static_cast<double>(places.size() + 1);
    const double whole = 1 + spread * static_cast<double>(made.choices);
    made.chosen = natural_log((1 + spread) / whole);
    made.other = natural_log(spread / whole);
    for (const double place : places) made.kernels.push_back({place, 0, 0});
    made.kernels.push_back({-1, 0, 0});
    return made;
  }
  made.low = domain.normal() ? 0 : domain.least();
  made.high = domain.normal() ? 1 : domain.most();
  made.least = made.low;
  made.most = made.high;
  made.step = domain.normal() ? 0 : domain.step();
  made.logarithmic = domain.logarithmic();
  made.low -= made.step / 2;
  made.high += made.step / 2;
  if (made.logarithmic) {
    made.low = natural_log(made.low);
    made.high = natural_log(made.high);
  }
  set_widths(made, places);
  return made;
}

// A kernel is as wide as the further of the two gaps to its neighbours.
void Parzen::set_widths(Dimension& dimension, const std::vector<double>& places) {
  const std::size_t n = places.size();
  const double range = dimension.high - dimension.low;
  const double least =
      range / std::min(kNarrowest, power(2.0 + static_cast<double>(n), kNarrowing));
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(places[a], a) < std::pair(places[b], b);
  });
  dimension.kernels.resize(n + 1);
  for (std::size_t i = 0; i < n; ++i) {
    const double place = places[order[i]];
    const double left = i > 0 ? place - places[order[i - 1]] : n > 1 ? 0 : place - dimension.low;
    const double right = i + 1 < n ? places[order[i + 1]] - place
                         : n > 1   ? 0
                                   : dimension.high - place;
    dimension.kernels[order[i]] = {place, std::clamp(std::max(left, right), least, range), 0};
  }
  dimension.kernels[n] = {(dimension.low + dimension.high) / 2, range, 0};
  for (Kernel& kernel : dimension.kernels) {
    kernel.scale = natural_log(mass((dimension.low - kernel.mean) / kernel.width,
                                    (dimension.high - kernel.mean) / kernel.width));
    if (dimension.step == 0) kernel.scale += natural_log(kernel.width);
    dimension.densest = std::max(dimension.densest, -kernel.scale);
  }
}

double Parzen::draw_choice(const Dimension& dimension, std::size_t kernel, Stream& chance) {
  const double mean = dimension.kernels[kernel].mean;
  const auto count = static_cast<double>(dimension.choices);
  const double u = chance.uniform();
  const double extra = mean < 0 ? 0 : natural_exp(dimension.chosen) - natural_exp(dimension.other);
  // With the part `extra` what was chosen, else any.
  if (u < extra) return mean;
  return std::min(std::floor((u - extra) / (1 - extra) * count), count - 1);
}

std::vector<double> Parzen::draw(Stream& chance) const {
  double u = chance.uniform();
  std::size_t kernel = 0;
  while (kernel + 1 < weights_.size() && u >= weights_[kernel]) u -= weights_[kernel++];
  std::vector<double> point;
  for (const Dimension& dimension : dimensions_) {
    if (dimension.choices > 0) {
      point.push_back(draw_choice(dimension, kernel, chance));
      continue;
    }
    const auto [mean, width, scale] = dimension.kernels[kernel];
    const double from = normal_cdf((dimension.low - mean) / width);
    const double to = normal_cdf((dimension.high - mean) / width);
    double place = mean + width * normal_quantile(from + chance.uniform() * (to - from));
    place = std::clamp(place, dimension.low, dimension.high);
    if (dimension.step > 0) {
      double value = dimension.logarithmic ? natural_exp(place) : place;
      value =
          dimension.least + std::rint((value - dimension.least) / dimension.step) * dimension.step;
      value = std::clamp(value, dimension.least, dimension.most);
      place = dimension.logarithmic ? natural_log(value) : value;
    }
    point.push_back(place);
  }
  return point;
}

Parzen::Span Parzen::span(const Dimension& dimension, double place) {
  if (dimension.step == 0) return {place, place};
  if (!dimension.logarithmic) return {place - dimension.step / 2, place + dimension.step / 2};
  const double value = natural_exp(place);
  return {natural_log(value - dimension.step / 2), natural_log(value + dimension.step / 2)};
}

// Less a constant that is the same for all kernels.
double Parzen::log_density(const Dimension& dimension, std::size_t kernel, Span span) {
  const auto [mean, width, scale] = dimension.kernels[kernel];
  if (dimension.choices > 0) {
    if (mean < 0) return -natural_log(static_cast<double>(dimension.choices));
    return mean == span.left ? dimension.chosen : dimension.other;
  }
  const double a = (span.left - mean) / width;
  const double b = (span.right - mean) / width;
  const double near = a > 0 ? a : b < 0 ? b : 0;
  const double most = -near * near / 2 - scale;
  if (dimension.step == 0 || most < -kNegligible) return most;
  return natural_log(mass(a, b)) - scale;
}

double Parzen::log_density(const std::vector<double>& point) const {
  std::vector<Span> spans;
  for (std::size_t i = 0; i < dimensions_.size(); ++i) {
    spans.push_back(span(dimensions_[i], point[i]));
  }
  std::vector<double> densest_behind(dimensions_.size() + 1, 0.0);  // of the dimensions from i on
  for (std::size_t i = dimensions_.size(); i-- > 0;) {
    densest_behind[i] = densest_behind[i + 1] + dimensions_[i].densest;
  }
  // The prior is above 0 everywhere; beside it most kernels are nothing, and are left as soon as
  // that is seen.
  const std::size_t prior = log_weights_.size() - 1;
  std::vector<double> terms;
  double largest = kImpossible;
  const auto add = [&](std::size_t kernel, double least) {
    double term = log_weights_[kernel];
    for (std::size_t i = 0; i < dimensions_.size(); ++i) {
      term += log_density(dimensions_[i], kernel, spans[i]);
      if (term + densest_behind[i + 1] < least) return;
    }
    terms.push_back(term);
    largest = std::max(largest, term);
  };
  add(prior, kImpossible);
  const double least = largest - kNegligible;
  for (std::size_t kernel = 0; kernel < prior; ++kernel) add(kernel, least);
  double sum = 0;
  for (const double term : terms) sum += natural_exp(term - largest);
  return largest + natural_log(sum);
}

}  // namespace dtrain::tune
