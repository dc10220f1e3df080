#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/tune/random.hpp"

// What `sample_from` and `when` say of other parameters: "layers * 32", "optimizer == 'sgd'",
// "uniform(0, a)". No loops, no names but parameters and the functions below: it ends, always.
//
//   a ? b : c    || or    && and    not    == != < <= > >=    + -    * / // %    - !    ** (right)
//   1  2.5e-3  'text' "text"  true false null  layers  model.depth
//   min max (one or more)  abs round floor ceil int float sqrt exp log log2 log10  pow(x, y)
//   uniform(low, high) loguniform(low, high) randint(low, high, not included) randn(mean, sd)
//
// Whole numbers stay whole where Python's do; / is always a fraction, // and % round down. Texts
// can be compared and joined by +. A number beyond what is finite is an error, not infinity.
namespace dtrain::tune {

class Expression {
 public:
  static constexpr std::size_t kLongest = 4096;  // bytes of text
  static constexpr int kDeepest = 64;            // parentheses, signs and so on in one another
  static constexpr std::size_t kMost = 500;      // values, signs and calls

  // Throws Error(invalid) that names the column, counted from 1.
  explicit Expression(std::string_view text);

  const std::string& text() const noexcept { return text_; }
  const std::set<std::string>& names() const noexcept { return names_; }  // of parameters
  bool draws() const noexcept { return draws_; }  // has uniform() or the like

  // Null where there is no such parameter, which is an error unless the branch is not taken.
  using Lookup = std::function<const nlohmann::json*(const std::string& name)>;
  // A number, a text, true, false or null. Throws Error(invalid) with the column.
  nlohmann::json value(const Lookup& lookup, Stream& chance) const;
  // The same for what must be true or false.
  bool holds(const Lookup& lookup, Stream& chance) const;

 private:
  friend class ExpressionParser;
  friend class ExpressionRun;

  enum class Op : std::uint8_t {
    literal,
    name,
    call,
    choose,
    either,
    both,
    negate,
    deny,
    equal,
    unequal,
    less,
    at_most,
    more,
    at_least,
    add,
    subtract,
    multiply,
    divide,
    floor_divide,
    modulo,
    power,
  };
  struct Node {
    Op op{};
    std::size_t column = 0;
    nlohmann::json literal;         // a value, or the name of a parameter
    std::size_t function = 0;       // of a call: which
    std::vector<std::size_t> from;  // operands, as indices of nodes_
  };

  std::string text_;
  std::vector<Node> nodes_;  // operands before what uses them; the last one is the whole
  std::set<std::string> names_;
  bool draws_ = false;
};

// [A-Za-z_][A-Za-z0-9_]*, parts of it joined by dots, at most 128 bytes.
bool valid_parameter_name(std::string_view name) noexcept;

}  // namespace dtrain::tune
