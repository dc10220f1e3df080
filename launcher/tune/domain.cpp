#include "launcher/tune/domain.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>

#include "launcher/core/text.hpp"
#include "launcher/tune/keys.hpp"
#include "launcher/tune/numeric.hpp"

namespace dtrain::tune {
namespace {

using Kind = Domain::Kind;

constexpr std::array kDomainNames = {
    "constant",    "choice", "grid_search", "sample_from", "uniform",  "quniform",   "loguniform",
    "qloguniform", "randn",  "qrandn",      "randint",     "qrandint", "lograndint", "qlograndint"};

constexpr double kNoBound = std::numeric_limits<double>::infinity();

bool rounded(Kind kind) {
  return kDomainNames[static_cast<std::size_t>(kind)][0] == 'q';
}

// The index of a bound among the multiples of q, rounded inwards; 3 * 0.1 / 0.1 counts as 3.
double grid_index(double bound, double q, bool up) {
  const double scaled = bound / q;
  const double near = std::rint(scaled);
  if (std::abs(scaled - near) <= 1e-9 * std::abs(scaled)) return near;
  return up ? std::ceil(scaled) : std::floor(scaled);
}

// index * q; 3 * 0.1 is 0.3, as a person would write it.
double multiple(double index, double q) {
  const double parts = std::rint(1 / q);
  return q < 1 && std::abs(parts * q - 1) < 1e-12 ? index / parts : index * q;
}

nlohmann::json number_json(double value, bool whole) {
  if (whole) return static_cast<std::int64_t>(value);
  return value;
}

}  // namespace

const char* to_string(Kind kind) noexcept {
  return kDomainNames[static_cast<std::size_t>(kind)];
}

std::optional<Kind> domain_kind(std::string_view name) noexcept {
  const auto found = std::find(kDomainNames.begin(), kDomainNames.end(), name);
  if (found == kDomainNames.end()) return std::nullopt;
  return static_cast<Kind>(found - kDomainNames.begin());
}

std::vector<std::string> domain_names() {
  return {kDomainNames.begin(), kDomainNames.end()};
}

bool Domain::sampled() const noexcept {
  return kind != Kind::constant && kind != Kind::grid_search && kind != Kind::sample_from;
}

bool Domain::logarithmic() const noexcept {
  return kind == Kind::loguniform || kind == Kind::qloguniform || kind == Kind::lograndint ||
         kind == Kind::qlograndint;
}

bool Domain::whole() const noexcept {
  return kind >= Kind::randint;
}

double Domain::step() const noexcept {
  return q > 0 ? q : whole() ? 1 : 0;
}

double Domain::least() const noexcept {
  if (normal()) return -kNoBound;
  return q > 0 ? multiple(grid_index(low, q, true), q) : low;
}

double Domain::most() const noexcept {
  if (normal()) return kNoBound;
  if (whole() && step() == 1) return high - 1;
  return q > 0 ? multiple(grid_index(high, q, false), q) : high;
}

nlohmann::json Domain::nearest_to(double number) const {
  const double step_size = step();
  if (step_size > 0) number = multiple(std::rint(number / step_size), step_size);
  return number_json(std::clamp(number, least(), most()), whole());
}

nlohmann::json Domain::at(double u) const {
  if (kind == Kind::choice) {
    const auto count = static_cast<double>(values.size());
    return values[static_cast<std::size_t>(std::min(std::floor(u * count), count - 1))];
  }
  // A normal distribution has no value at 0: half a step of what a double tells apart.
  if (normal()) return nearest_to(low + high * normal_quantile(std::max(u, 0x1p-54)));
  if (whole()) {
    // The same over the indices of the multiples, so that each is as likely.
    const double factor = step();
    const double first = std::rint(least() / factor);
    const double count = std::rint(most() / factor) - first + 1;
    const double index =
        logarithmic()
            ? std::floor(natural_exp(natural_log(first) +
                                     u * (natural_log(first + count) - natural_log(first))))
            : first + std::floor(u * count);
    return number_json(std::clamp(index, first, first + count - 1) * factor, true);
  }
  const double from = least();
  const double to = most();
  if (!logarithmic()) return nearest_to(from + u * (to - from));
  return nearest_to(natural_exp(natural_log(from) + u * (natural_log(to) - natural_log(from))));
}

std::optional<double> Domain::position(const nlohmann::json& value) const {
  if (listed() || kind == Kind::constant) {
    const auto found = std::find(values.begin(), values.end(), value);
    if (found == values.end()) return std::nullopt;
    return static_cast<double>(found - values.begin());
  }
  if (!value.is_number()) return std::nullopt;
  const double number = value.get<double>();
  if (!(number >= least() && number <= most())) return std::nullopt;
  const double step_size = step();
  if (step_size > 0) {
    const double index = number / step_size;
    if (std::abs(index - std::rint(index)) > 1e-6) return std::nullopt;
  }
  return std::isfinite(number) ? std::optional(number) : std::nullopt;
}

bool Domain::operator==(const Domain& other) const {
  return to_json(*this) == to_json(other);
}

namespace {

Domain listed_domain(Domain domain, const nlohmann::json& arguments, const Path& path,
                     Problems& problems) {
  if (!arguments.is_array() || arguments.empty() || arguments.size() > Domain::kMostValues) {
    problems.add(path, "must be a list of 1 to " + std::to_string(Domain::kMostValues) +
                           " values, not " + shown(arguments));
  } else {
    domain.values.assign(arguments.begin(), arguments.end());
    std::set<nlohmann::json> seen;
    for (std::size_t i = 0; i < domain.values.size(); ++i) {
      if (!seen.insert(domain.values[i]).second) {
        problems.add(with(path, "[" + std::to_string(i) + "]"),
                     shown(domain.values[i]) + " is there twice");
      }
    }
  }
  return domain;
}

// The words for what a kind takes: "[low, high, q]".
std::string wanted_numbers(Kind kind) {
  const bool normal = kind == Kind::randn || kind == Kind::qrandn;
  std::string text = normal ? "[mean, sd" : "[low, high";
  return text + (rounded(kind) ? ", q]" : "]");
}

void check_numbers(Domain& domain, const Path& path, Problems& problems) {
  const double largest = domain.whole() ? Domain::kLargestWhole : Domain::kLargest;
  for (const double number : {domain.low, domain.high, domain.q}) {
    if (!(std::abs(number) <= largest)) {
      return problems.add(path, "numbers are from " + shown(-largest) + " to " + shown(largest));
    }
    if (domain.whole() && number != std::floor(number)) {
      return problems.add(path, shown(number) + " is not a whole number");
    }
  }
  if (rounded(domain.kind) && !(domain.q > 0)) return problems.add(path, "q must be above 0");
  if (domain.normal()) {
    if (!(domain.high > 0)) problems.add(path, "the standard deviation must be above 0");
    return;
  }
  if (!(domain.low < domain.high)) {
    return problems.add(
        path, "low must be below high, not " + shown(domain.low) + " and " + shown(domain.high));
  }
  if (domain.logarithmic() && !(domain.low > 0)) {
    return problems.add(path, "low must be above 0, for a logarithm");
  }
  if (domain.q > 0 && (!(domain.most() >= domain.least()) ||
                       (domain.most() - domain.least()) / domain.q > Domain::kLargestWhole)) {
    problems.add(path, "between " + shown(domain.low) + " and " + shown(domain.high) +
                           " there is no multiple of " + shown(domain.q) + ", or too many");
  }
}

}  // namespace

Domain domain_from_json(Kind kind, const nlohmann::json& arguments, const Path& path,
                        Problems& problems) {
  Domain domain;
  domain.kind = kind;
  if (kind == Kind::constant) {
    domain.values = {arguments};
    return domain;
  }
  if (domain.listed()) return listed_domain(std::move(domain), arguments, path, problems);
  if (kind == Kind::sample_from) {
    if (!arguments.is_string()) {
      problems.add(path, "must be an expression, not " + shown(arguments));
      return domain;
    }
    try {
      domain.expression.emplace(arguments.get_ref<const std::string&>());
    } catch (const Error& error) {
      problems.add(path, error.message());
    }
    return domain;
  }
  std::vector<double> numbers;
  const auto take = [&](const nlohmann::json& each) {
    numbers.push_back(each.is_number() ? each.get<double>() : std::nan(""));
  };
  if (arguments.is_array()) {
    for (const nlohmann::json& each : arguments) take(each);
  } else {
    take(arguments);
  }
  if (kind == Kind::randint && numbers.size() == 1) numbers.insert(numbers.begin(), 0);
  if (kind == Kind::randn && arguments.is_array() && numbers.empty()) numbers = {0, 1};
  const bool numeric =
      std::none_of(numbers.begin(), numbers.end(), [](double each) { return std::isnan(each); });
  if (!numeric || numbers.size() != (rounded(kind) ? 3 : 2)) {
    problems.add(path, "must be " + wanted_numbers(kind) + ", not " + shown(arguments));
    return domain;
  }
  domain.low = numbers[0];
  domain.high = numbers[1];
  if (rounded(kind)) domain.q = numbers[2];
  check_numbers(domain, path, problems);
  return domain;
}

nlohmann::json to_json(const Domain& domain) {
  if (domain.kind == Kind::constant) {
    const nlohmann::json& value = domain.values.at(0);
    if (!value.is_object() && !value.is_string()) return value;
    nlohmann::json object = nlohmann::json::object();
    object["constant"] = value;
    return object;
  }
  nlohmann::json arguments = nlohmann::json::array();
  if (domain.listed()) {
    for (const nlohmann::json& value : domain.values) arguments.push_back(value);
  } else if (domain.kind == Kind::sample_from) {
    arguments = domain.expression->text();
  } else {
    arguments.push_back(number_json(domain.low, domain.whole()));
    arguments.push_back(number_json(domain.high, domain.whole()));
    if (domain.q > 0) arguments.push_back(number_json(domain.q, domain.whole()));
  }
  nlohmann::json object = nlohmann::json::object();
  object[to_string(domain.kind)] = std::move(arguments);
  return object;
}

namespace {

// A number, true, false or null as JSON has it; else a text.
nlohmann::json word_json(std::string_view word) {
  if (word.starts_with('[') || word.starts_with('{') || word.starts_with('"')) return word;
  nlohmann::json value = nlohmann::json::parse(word, nullptr, false);
  return value.is_discarded() ? nlohmann::json(word) : value;
}

}  // namespace

Domain domain_from_line(std::string_view line, const Path& path, Problems& problems) {
  const std::size_t colon = line.find(':');
  const std::string_view name = line.substr(0, colon);
  const auto kind = domain_kind(name);
  if (!is_utf8(line)) problems.add(path, "is not UTF-8");
  if (colon == std::string_view::npos || !kind) {
    const std::vector<std::string> names = domain_names();
    const auto near = nearest(name, names);
    if (colon != std::string_view::npos && near) {
      problems.add(path, "\"" + printable(name, false) + "\" is not known here",
                   "did you mean \"" + *near + "\"? A text as it is would be constant:TEXT");
    }
    return domain_from_json(Kind::constant, word_json(line), path, problems);
  }
  const std::string_view rest = line.substr(colon + 1);
  if (*kind == Kind::constant || *kind == Kind::sample_from) {
    return domain_from_json(*kind, rest, path, problems);
  }
  nlohmann::json arguments = nlohmann::json::array();
  for (const std::string& word : split(rest, ':')) arguments.push_back(word_json(word));
  return domain_from_json(*kind, arguments, path, problems);
}

}  // namespace dtrain::tune
