#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/tune/expression.hpp"
#include "launcher/tune/problem.hpp"

// What values one parameter may have. Names and meaning are Ray Tune's: the upper end of randint
// and lograndint is not included; q… rounds to multiples of q, and includes it.
namespace dtrain::tune {

struct Domain {
  enum class Kind : std::uint8_t {
    constant,     // 3, "text", [1, 2], or {constant: anything}
    choice,       // {choice: [a, b]}
    grid_search,  // {grid_search: [a, b]}: each in its turn
    sample_from,  // {sample_from: "layers * 32"}
    uniform,
    quniform,
    loguniform,
    qloguniform,  // [low, high] and [low, high, q]
    randn,
    qrandn,  // [mean, sd] and [mean, sd, q]
    randint,
    qrandint,
    lograndint,
    qlograndint,  // whole numbers; [high] is [0, high]
  };

  Kind kind = Kind::constant;
  std::vector<nlohmann::json> values;    // of choice and grid_search; of a constant, the one
  double low = 0, high = 0;              // of randn the mean and the standard deviation
  double q = 0;                          // 0: not rounded
  std::optional<Expression> expression;  // of sample_from

  static constexpr std::size_t kMostValues = 1'000;
  static constexpr double kLargest = 1e300;      // of bounds that are no whole numbers
  static constexpr double kLargestWhole = 1e15;  // of whole ones

  bool sampled() const noexcept;  // a sampler picks the value: not constant, grid, sample_from
  bool listed() const noexcept { return kind == Kind::choice || kind == Kind::grid_search; }
  bool normal() const noexcept { return kind == Kind::randn || kind == Kind::qrandn; }
  bool logarithmic() const noexcept;
  bool whole() const noexcept;
  // The distance of neighbouring values: q, 1 for whole numbers, 0 where there are no neighbours.
  double step() const noexcept;
  // The smallest and the largest value; infinite for normal ones. Numbers only.
  double least() const noexcept;
  double most() const noexcept;

  // The value below which the part u, from 0 to below 1, of the distribution lies; of a sampled
  // one.
  nlohmann::json at(double u) const;
  // The nearest value that there is, for a number from outside; of one of numbers.
  nlohmann::json nearest_to(double number) const;
  // Where the value stands: index for a list, the number itself else. Absent: it is none of these.
  std::optional<double> position(const nlohmann::json& value) const;

  bool operator==(const Domain& other) const;
};

const char* to_string(Domain::Kind kind) noexcept;
std::optional<Domain::Kind> domain_kind(std::string_view name) noexcept;
std::vector<std::string> domain_names();  // for messages, as they are written

// `arguments` is what stands under the kind's name, with its problems under `path`.
Domain domain_from_json(Domain::Kind kind, const nlohmann::json& arguments, const Path& path,
                        Problems& problems);
nlohmann::json to_json(const Domain& domain);  // {"uniform": [0, 1]}; most constants by themselves

// "loguniform:1e-4:1e-1", "choice:16:32", "sample_from:layers * 32", else a constant: on the
// command line and where a text stands in a space. A text that only looks like one is
// "constant:TEXT".
Domain domain_from_line(std::string_view line, const Path& path, Problems& problems);

}  // namespace dtrain::tune
