#include "launcher/tune/expression.hpp"

#include "launcher/core/error.hpp"
#include "tests/launcher/tune/support.hpp"

using namespace dtrain;
using namespace dtrain::tune;

namespace {

nlohmann::json computed_of(std::string_view text, const Params& params = {}) {
  Stream chance(1, 2, "test");
  return Expression(text).value(
      [&](const std::string& name) {
        const auto found = params.find(name);
        return found == params.end() ? nullptr : &found->second;
      },
      chance);
}

std::string complaint_of(std::string_view text, const Params& params = {}) {
  try {
    return computed_of(text, params).dump();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid);
    return error.message();
  }
}

}  // namespace

TEST_CASE("expressions compute as Python does") {
  CHECK(computed_of("1 + 2 * 3") == 7);
  CHECK(computed_of("1 + 2 * 3").is_number_integer());
  CHECK(computed_of("(1 + 2) * 3 - -1") == 10);
  CHECK(computed_of("7 / 2") == 3.5);
  CHECK(computed_of("4 / 2").is_number_float());
  CHECK(computed_of("-7 // 2") == -4);
  CHECK(computed_of("-7 % 3") == 2);
  CHECK(computed_of("2 ** 3 ** 2") == 512);
  CHECK(computed_of("-2 ** 2") == -4);
  CHECK(computed_of("2 ** -1") == 0.5);
  CHECK(computed_of("1e-3 * 1000") == 1.0);
  CHECK(computed_of("min(3, 1.5, 2)") == 1.5);
  CHECK(computed_of("max(3, 1)").is_number_integer());
  CHECK(computed_of("round(2.5) + round(3.5) + int(-1.7) + floor(1.5) + ceil(1.5)") == 8);
  CHECK(computed_of("pow(2, 0.5) - sqrt(2)") == 0);
  CHECK(computed_of("log10(1000)").get<double>() == doctest::Approx(3));
  CHECK(computed_of("exp(log(5))").get<double>() == doctest::Approx(5));
  CHECK(computed_of("log2(8)").get<double>() == doctest::Approx(3));
  CHECK(computed_of("abs(-3)") == 3);
  CHECK(computed_of("abs(-3)").is_number_integer());
  CHECK(computed_of("float(2)") == 2);
  CHECK(computed_of("float(2)").is_number_float());
  CHECK(computed_of("'a' + \"b\"") == "ab");
  CHECK(computed_of("1 < 2 && !('a' == 'b') or false") == true);
  CHECK(computed_of("not 1 >= 2 and 'a' < 'b'") == true);
  CHECK(computed_of("1 == 1.0") == true);
  CHECK(computed_of("None == null") == true);
}

TEST_CASE("expressions look at parameters, and only at those of the branch that is taken") {
  const Params params = {{"layers", 3}, {"model.width", 0.5}, {"kind", "sgd"}, {"list", {1, 2}}};
  CHECK(computed_of("layers * 32", params) == 96);
  CHECK(computed_of("model.width + layers", params) == 3.5);
  CHECK(computed_of("kind == 'sgd' ? layers : missing", params) == 3);
  CHECK(computed_of("kind == 'sgd' || missing > 2", params) == true);
  CHECK(computed_of("layers > 5 ? 'deep' : layers > 2 ? 'middle' : 'flat'", params) == "middle");
  CHECK(Expression("a + b.c * a").names() == std::set<std::string>{"a", "b.c"});
  CHECK(complaint_of("1 + missing", params) == "there is no \"missing\" in this trial at column 5");
  CHECK(complaint_of("list", params) == "\"list\" is neither a number nor a text at column 1");
}

TEST_CASE("expressions draw, the same again for the same trial") {
  CHECK(Expression("uniform(0, 1)").draws());
  CHECK_FALSE(Expression("min(0, 1)").draws());
  CHECK(computed_of("uniform(2, 3)") == computed_of("uniform(2, 3)"));
  const double drawn = computed_of("uniform(2, 3)").get<double>();
  CHECK((drawn >= 2 && drawn < 3));
  CHECK(computed_of("randint(4, 5)") == 4);
  const double logarithmic = computed_of("loguniform(0.001, 0.01)").get<double>();
  CHECK((logarithmic >= 0.001 && logarithmic < 0.01));
  CHECK(computed_of("randn(5, 0)") == 5);
  CHECK(computed_of("randn(5, 1)") != 5);
  CHECK(complaint_of("randint(5, 5)") == "the result is no finite number at column 1");
}

TEST_CASE("what is wrong with an expression is said with its column") {
  CHECK(complaint_of("") == "a value is missing at column 1");
  CHECK(complaint_of("1 +") == "a value is missing at column 4");
  CHECK(complaint_of("(1") == "\")\" is missing at column 3");
  CHECK(complaint_of("1 2") == "\"2\" is not understood at column 3");
  CHECK(complaint_of("a ? 1") == "\":\" is missing at column 6");
  CHECK(complaint_of("1 & 2") == "\"& 2\" is not understood at column 3");
  CHECK(complaint_of("'abc") == "the quote is not closed at column 1");
  CHECK(complaint_of("1.2.3") == "\".3\" is not understood at column 4");
  CHECK(complaint_of("pow(1)") == "pow() takes 2 values, not 1 at column 1");
  CHECK(complaint_of("min()") == "min() takes 1 or more values, not 0 at column 1");
  CHECK(complaint_of("system(1)").starts_with("\"system\" is no function"));
  CHECK(complaint_of("1 / 0") == "division by zero at column 3");
  CHECK(complaint_of("10 ** 400") == "the result is no finite number at column 4");
  CHECK(complaint_of("log(-1)") == "the result is no finite number at column 1");
  CHECK(complaint_of("'a' * 2") == "\"a\" is no number at column 5");
  CHECK(complaint_of("1 ? 2 : 3") == "1 is neither true nor false at column 1");
  CHECK(complaint_of("'a' < 1") == "\"a\" and 1 have no order at column 5");
}

TEST_CASE("expressions have limits") {
  CHECK(complaint_of(std::string(60, '(') + "1" + std::string(60, ')')) == "1");
  CHECK(complaint_of(std::string(65, '(') + "1" + std::string(65, ')'))
            .starts_with("nested deeper than 64"));
  CHECK(complaint_of(std::string(2000, '-') + "1").starts_with("nested deeper than 64"));
  std::string many = "1";
  for (int i = 0; i < 1000; ++i) many += "+1";
  CHECK(complaint_of(many).starts_with("more than 500 values and signs"));
  CHECK(complaint_of(std::string(5000, ' ')).starts_with("an expression is longer than 4096"));
}
