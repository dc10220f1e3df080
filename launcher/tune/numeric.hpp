#pragma once

// The few functions of mathematics that decisions hang on. The C library's differ in the last bit
// between machines (it picks others where there is FMA) and so would a search; these use + - * /
// and sqrt alone, whose results IEEE 754 fixes. All are good to some 1e-15.
namespace dtrain::tune {

double natural_exp(double x) noexcept;  // 0 and infinity beyond what a double holds
double natural_log(double x) noexcept;  // NaN below 0, -infinity at 0
// x to the y; whole y by multiplication. NaN for a negative x and a y that is not whole.
double power(double x, double y) noexcept;
double normal_cdf(double x) noexcept;
// The other way round: for p in (0, 1); infinite at 0 and 1.
double normal_quantile(double p) noexcept;

}  // namespace dtrain::tune
