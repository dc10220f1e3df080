#include <algorithm>
#include <charconv>
#include <cmath>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/tune/expression_functions.hpp"

namespace dtrain::tune {
namespace {

bool name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool decimal(char c) {
  return c >= '0' && c <= '9';
}

}  // namespace

void expression_error(std::size_t column, const std::string& message) {
  throw Error(ErrorCode::invalid, message + " at column " + std::to_string(column + 1));
}

bool valid_parameter_name(std::string_view name) noexcept {
  bool start = true;
  for (const char c : name) {
    if (start ? !name_start(c) : !(name_start(c) || decimal(c) || c == '.')) return false;
    start = c == '.';
  }
  return !start && name.size() <= 128;
}

// Recursive descent, one function a level of binding; every way down passes unary(), which counts.
class ExpressionParser {
 public:
  using Op = Expression::Op;

  explicit ExpressionParser(Expression& into) : into_(into), text_(into.text_) {}

  void parse() {
    if (text_.size() > Expression::kLongest) {
      throw Error(ErrorCode::invalid, "an expression is longer than " +
                                          std::to_string(Expression::kLongest) + " bytes");
    }
    choice();
    skip();
    if (at_ < text_.size()) fail("\"" + rest() + "\" is not understood");
  }

 private:
  struct Binary {
    std::string_view sign;
    Op op;
  };

  [[noreturn]] void fail(const std::string& message) const { expression_error(at_, message); }

  std::string rest() const { return printable(std::string_view(text_).substr(at_, 20), false); }

  void skip() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n')) {
      ++at_;
    }
  }

  // Takes the sign if it stands here; a word only whole.
  bool take(std::string_view sign) {
    skip();
    if (!std::string_view(text_).substr(at_).starts_with(sign)) return false;
    const std::size_t end = at_ + sign.size();
    const auto in_name = [](char c) { return name_start(c) || decimal(c) || c == '.'; };
    if (name_start(sign[0]) && end < text_.size() && in_name(text_[end])) return false;
    at_ = end;
    return true;
  }

  void want(std::string_view sign) {
    if (!take(sign)) {
      fail(at_ < text_.size() ? "\"" + std::string(sign) + "\" is missing before \"" + rest() + "\""
                              : "\"" + std::string(sign) + "\" is missing");
    }
  }

  std::size_t node(Op op, std::size_t column, std::vector<std::size_t> from,
                   nlohmann::json literal = nullptr, std::size_t function = 0) {
    if (into_.nodes_.size() == Expression::kMost) {
      fail("more than " + std::to_string(Expression::kMost) + " values and signs");
    }
    into_.nodes_.push_back({op, column, std::move(literal), function, std::move(from)});
    return into_.nodes_.size() - 1;
  }

  std::size_t choice() {
    Deeper deeper(*this);
    const std::size_t condition = binary(0);
    skip();
    const std::size_t column = at_;
    if (!take("?")) return condition;
    const std::size_t yes = choice();
    want(":");
    const std::size_t no = choice();
    return node(Op::choose, column, {condition, yes, no});
  }

  static constexpr std::size_t kComparisons = 2;  // of levels()
  static const std::vector<std::vector<Binary>>& levels() {
    static const std::vector<std::vector<Binary>> kLevels = {
        {{"||", Op::either}, {"or", Op::either}},
        {{"&&", Op::both}, {"and", Op::both}},
        {{"==", Op::equal},
         {"!=", Op::unequal},
         {"<=", Op::at_most},
         {">=", Op::at_least},
         {"<", Op::less},
         {">", Op::more}},
        {{"+", Op::add}, {"-", Op::subtract}},
        {{"//", Op::floor_divide}, {"/", Op::divide}, {"%", Op::modulo}, {"*", Op::multiply}}};
    return kLevels;
  }

  std::size_t binary(std::size_t level) {
    if (level == levels().size()) return unary();
    if (level == kComparisons) {  // of which Python's `not` is
      Deeper deeper(*this);
      skip();
      const std::size_t column = at_;
      if (take("not")) return node(Op::deny, column, {binary(level)});
    }
    std::size_t left = binary(level + 1);
    for (;;) {
      skip();
      const std::size_t column = at_;
      const auto& signs = levels()[level];
      const auto found = std::find_if(signs.begin(), signs.end(),
                                      [&](const Binary& each) { return take(each.sign); });
      if (found == signs.end()) return left;
      const std::size_t right = binary(level + 1);
      left = node(found->op, column, {left, right});
    }
  }

  std::size_t unary() {
    Deeper deeper(*this);
    skip();
    const std::size_t column = at_;
    if (take("-")) return node(Op::negate, column, {unary()});
    if (take("+")) return unary();
    if (take("!")) return node(Op::deny, column, {unary()});
    const std::size_t base = atom();
    skip();
    const std::size_t sign = at_;
    if (take("**")) return node(Op::power, sign, {base, unary()});
    return base;
  }

  std::size_t atom() {
    skip();
    const std::size_t column = at_;
    if (at_ == text_.size()) fail("a value is missing");
    const char c = text_[at_];
    if (take("(")) {
      const std::size_t inner = choice();
      want(")");
      return inner;
    }
    if (decimal(c) || c == '.') return number();
    if (c == '\'' || c == '"') return quoted();
    if (!name_start(c)) fail("\"" + rest() + "\" is not understood");
    while (at_ < text_.size() &&
           (name_start(text_[at_]) || decimal(text_[at_]) || text_[at_] == '.')) {
      ++at_;
    }
    const std::string name = text_.substr(column, at_ - column);
    if (name == "true" || name == "True") return node(Op::literal, column, {}, true);
    if (name == "false" || name == "False") return node(Op::literal, column, {}, false);
    if (name == "null" || name == "None") return node(Op::literal, column, {}, nullptr);
    if (take("(")) return call(column, name);
    if (!valid_parameter_name(name))
      expression_error(column, "\"" + name.substr(0, 60) + "\" is no name of a parameter");
    into_.names_.insert(name);
    return node(Op::name, column, {}, name);
  }

  std::size_t number() {
    const std::size_t column = at_;
    const char* const first = text_.data() + at_;
    const char* const last = text_.data() + text_.size();
    double value = 0;
    const auto [end, error] = std::from_chars(first, last, value);
    if (error != std::errc{} || !std::isfinite(value)) fail("\"" + rest() + "\" is no number");
    at_ += static_cast<std::size_t>(end - first);
    if (at_ < text_.size() && (name_start(text_[at_]) || text_[at_] == '.')) {
      fail("\"" + rest() + "\" is not understood");
    }
    std::int64_t whole = 0;
    const auto [whole_end, whole_error] = std::from_chars(first, end, whole);
    if (whole_error == std::errc{} && whole_end == end) {
      return node(Op::literal, column, {}, whole);
    }
    return node(Op::literal, column, {}, value);
  }

  std::size_t quoted() {
    const std::size_t column = at_;
    const std::size_t end = text_.find(text_[at_], at_ + 1);
    if (end == std::string::npos) fail("the quote is not closed");
    const std::string inner = text_.substr(at_ + 1, end - at_ - 1);
    if (!is_utf8(inner)) fail("the text is not UTF-8");
    at_ = end + 1;
    return node(Op::literal, column, {}, inner);
  }

  std::size_t call(std::size_t column, const std::string& name) {
    const auto& functions = expression_functions();
    const auto found = std::find_if(functions.begin(), functions.end(),
                                    [&](const auto& each) { return name == each.name; });
    if (found == functions.end()) {
      std::vector<std::string> names;
      for (const auto& each : functions) names.emplace_back(each.name);
      expression_error(column, "\"" + name.substr(0, 60) + "\" is no function (there are " +
                                   join(names, ", ") + ")");
    }
    std::vector<std::size_t> from;
    if (!take(")")) {
      do {
        from.push_back(choice());
      } while (take(","));
      want(")");
    }
    if (from.size() < found->least || from.size() > found->most) {
      expression_error(column, name + "() takes " + std::to_string(found->least) +
                                   (found->most > found->least ? " or more" : "") +
                                   " values, not " + std::to_string(from.size()));
    }
    into_.draws_ = into_.draws_ || found->draws;
    return node(Op::call, column, std::move(from), nullptr,
                static_cast<std::size_t>(found - functions.begin()));
  }

  class Deeper {
   public:
    explicit Deeper(ExpressionParser& parser) : parser_(parser) {
      if (++parser_.depth_ > kLevelsEach * Expression::kDeepest) {
        parser_.fail("nested deeper than " + std::to_string(Expression::kDeepest));
      }
    }
    ~Deeper() { --parser_.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    ExpressionParser& parser_;
  };

  static constexpr int kLevelsEach = 2;  // a parenthesis passes choice() and unary()

  Expression& into_;
  const std::string& text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

Expression::Expression(std::string_view text) : text_(text) {
  ExpressionParser(*this).parse();
}

}  // namespace dtrain::tune
