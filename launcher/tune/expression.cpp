#include "launcher/tune/expression.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "launcher/core/error.hpp"
#include "launcher/tune/expression_functions.hpp"
#include "launcher/tune/keys.hpp"
#include "launcher/tune/numeric.hpp"

namespace dtrain::tune {
namespace {

using Values = std::vector<double>;

constexpr std::size_t kAnyMany = std::numeric_limits<std::size_t>::max();
constexpr double kWholeLimit = 9007199254740992.0;  // 2^53: up to it a double is exact

// Python's round(): halves to the even one.
double half_even(double x) {
  const double low = std::floor(x);
  const double over = x - low;
  if (over != 0.5) return over < 0.5 ? low : low + 1;
  return low / 2 == std::floor(low / 2) ? low : low + 1;
}

nlohmann::json whole_or_not(double value, bool whole) {
  if (whole && std::abs(value) <= kWholeLimit) return static_cast<std::int64_t>(value);
  return value;
}

}  // namespace

const std::vector<ExpressionFunction>& expression_functions() {
  static const std::vector<ExpressionFunction> kFunctions = {
      {"min", 1, kAnyMany, false,
       [](const Values& v, Stream&) { return *std::min_element(v.begin(), v.end()); }, false, true},
      {"max", 1, kAnyMany, false,
       [](const Values& v, Stream&) { return *std::max_element(v.begin(), v.end()); }, false, true},
      {"abs", 1, 1, false, [](const Values& v, Stream&) { return std::abs(v[0]); }, false, true},
      {"round", 1, 1, false, [](const Values& v, Stream&) { return half_even(v[0]); }, true, true},
      {"floor", 1, 1, false, [](const Values& v, Stream&) { return std::floor(v[0]); }, true, true},
      {"ceil", 1, 1, false, [](const Values& v, Stream&) { return std::ceil(v[0]); }, true, true},
      {"int", 1, 1, false, [](const Values& v, Stream&) { return std::trunc(v[0]); }, true, true},
      {"float", 1, 1, false, [](const Values& v, Stream&) { return v[0]; }, false, false},
      {"sqrt", 1, 1, false, [](const Values& v, Stream&) { return std::sqrt(v[0]); }, false, false},
      {"exp", 1, 1, false, [](const Values& v, Stream&) { return natural_exp(v[0]); }, false,
       false},
      {"log", 1, 1, false, [](const Values& v, Stream&) { return natural_log(v[0]); }, false,
       false},
      {"log2", 1, 1, false,
       [](const Values& v, Stream&) { return natural_log(v[0]) / natural_log(2); }, false, false},
      {"log10", 1, 1, false,
       [](const Values& v, Stream&) { return natural_log(v[0]) / natural_log(10); }, false, false},
      {"pow", 2, 2, false, [](const Values& v, Stream&) { return power(v[0], v[1]); }, false,
       false},
      {"uniform", 2, 2, true,
       [](const Values& v, Stream& chance) { return v[0] + chance.uniform() * (v[1] - v[0]); },
       false, false},
      {"loguniform", 2, 2, true,
       [](const Values& v, Stream& chance) {
         const double low = natural_log(v[0]);
         return natural_exp(low + chance.uniform() * (natural_log(v[1]) - low));
       },
       false, false},
      {"randint", 2, 2, true,
       [](const Values& v, Stream& chance) {
         const double low = std::ceil(v[0]);
         const double many = std::ceil(v[1]) - low;
         if (!(many >= 1) || !(many <= kWholeLimit)) return std::nan("");
         return low + static_cast<double>(chance.below(static_cast<std::uint64_t>(many)));
       },
       true, true},
      {"randn", 2, 2, true,
       [](const Values& v, Stream& chance) { return v[0] + v[1] * chance.normal(); }, false, false},
  };
  return kFunctions;
}

class ExpressionRun {
 public:
  ExpressionRun(const Expression& expression, const Expression::Lookup& lookup, Stream& chance)
      : nodes_(expression.nodes_), lookup_(lookup), chance_(chance) {}

  // As deep as the parser let it become; branches that are not taken are not looked at.
  nlohmann::json value(std::size_t index) {
    const Node& node = nodes_[index];
    switch (node.op) {
      case Op::literal:
        return node.literal;
      case Op::name:
        return named(node);
      case Op::call:
        return called(node);
      case Op::choose:
        return value(node.from[truth(node.from[0]) ? 1 : 2]);
      case Op::either:
        return truth(node.from[0]) || truth(node.from[1]);
      case Op::both:
        return truth(node.from[0]) && truth(node.from[1]);
      case Op::deny:
        return !truth(node.from[0]);
      case Op::negate: {
        const nlohmann::json of = number(node.from[0]);
        return result(node, -of.get<double>(), of.is_number_integer());
      }
      case Op::equal:
        return value(node.from[0]) == value(node.from[1]);
      case Op::unequal:
        return value(node.from[0]) != value(node.from[1]);
      case Op::less:
      case Op::at_most:
      case Op::more:
      case Op::at_least:
        return compared(node);
      case Op::add:
      case Op::subtract:
      case Op::multiply:
      case Op::divide:
      case Op::floor_divide:
      case Op::modulo:
      case Op::power:
        return computed(node);
    }
    return nullptr;
  }

  bool truth(std::size_t index) {
    const nlohmann::json found = value(index);
    if (!found.is_boolean()) {
      expression_error(nodes_[index].column, shown(found) + " is neither true nor false");
    }
    return found.get<bool>();
  }

 private:
  using Op = Expression::Op;
  using Node = Expression::Node;

  nlohmann::json named(const Node& node) {
    const auto& name = node.literal.get_ref<const std::string&>();
    const nlohmann::json* found = lookup_(name);
    if (!found) expression_error(node.column, "there is no \"" + name + "\" in this trial");
    if (found->is_structured()) {
      expression_error(node.column, "\"" + name + "\" is neither a number nor a text");
    }
    return *found;
  }

  nlohmann::json number(std::size_t index) {
    nlohmann::json found = value(index);
    if (!found.is_number()) {
      expression_error(nodes_[index].column, shown(found) + " is no number");
    }
    return found;
  }

  static nlohmann::json result(const Node& node, double value, bool whole) {
    if (!std::isfinite(value)) expression_error(node.column, "the result is no finite number");
    return whole_or_not(value, whole);
  }

  nlohmann::json called(const Node& node) {
    const ExpressionFunction& function = expression_functions()[node.function];
    Values values;
    bool whole = true;
    for (const std::size_t from : node.from) {
      const nlohmann::json each = number(from);
      whole = whole && each.is_number_integer();
      values.push_back(each.get<double>());
    }
    return result(node, function.of(values, chance_),
                  function.whole || (function.whole_of_whole && whole));
  }

  nlohmann::json compared(const Node& node) {
    const nlohmann::json left = value(node.from[0]);
    const nlohmann::json right = value(node.from[1]);
    if (!(left.is_number() && right.is_number()) && !(left.is_string() && right.is_string())) {
      expression_error(node.column, shown(left) + " and " + shown(right) + " have no order");
    }
    const int order = left < right ? -1 : left == right ? 0 : 1;
    if (node.op == Op::less) return order < 0;
    if (node.op == Op::at_most) return order <= 0;
    return node.op == Op::more ? order > 0 : order >= 0;
  }

  nlohmann::json computed(const Node& node) {
    const nlohmann::json left = value(node.from[0]);
    const nlohmann::json right = value(node.from[1]);
    if (node.op == Op::add && left.is_string() && right.is_string()) {
      const std::string joined = left.get<std::string>() + right.get<std::string>();
      if (joined.size() > Expression::kLongest)
        expression_error(node.column, "the text is too long");
      return joined;
    }
    for (const nlohmann::json* each : {&left, &right}) {
      if (!each->is_number()) expression_error(node.column, shown(*each) + " is no number");
    }
    const double a = left.get<double>();
    const double b = right.get<double>();
    const bool whole = left.is_number_integer() && right.is_number_integer();
    const bool by_zero =
        b == 0 && (node.op == Op::divide || node.op == Op::floor_divide || node.op == Op::modulo);
    if (by_zero) expression_error(node.column, "division by zero");
    if (node.op == Op::add) return result(node, a + b, whole);
    if (node.op == Op::subtract) return result(node, a - b, whole);
    if (node.op == Op::multiply) return result(node, a * b, whole);
    if (node.op == Op::divide) return result(node, a / b, false);
    if (node.op == Op::floor_divide) return result(node, std::floor(a / b), whole);
    if (node.op == Op::modulo) return result(node, a - b * std::floor(a / b), whole);
    return result(node, power(a, b), whole && b >= 0);
  }

  const std::vector<Node>& nodes_;
  const Expression::Lookup& lookup_;
  Stream& chance_;
};

nlohmann::json Expression::value(const Lookup& lookup, Stream& chance) const {
  return ExpressionRun(*this, lookup, chance).value(nodes_.size() - 1);
}

bool Expression::holds(const Lookup& lookup, Stream& chance) const {
  return ExpressionRun(*this, lookup, chance).truth(nodes_.size() - 1);
}

}  // namespace dtrain::tune
