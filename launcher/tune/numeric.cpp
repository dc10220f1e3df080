#include "launcher/tune/numeric.hpp"

#include <cmath>
#include <limits>

namespace dtrain::tune {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
// ln 2 in two parts: whole multiples of the first are exact.
constexpr double kLn2High = 6.93147180369123816490e-01;
constexpr double kLn2Low = 1.90821492927058770002e-10;

// From the highest coefficient down.
template <std::size_t N>
double polynomial(double x, const double (&coefficients)[N]) noexcept {
  double sum = 0;
  for (const double coefficient : coefficients) sum = sum * x + coefficient;
  return sum;
}

}  // namespace

// The reductions and coefficients of fdlibm (Sun Microsystems, 1993).
double natural_exp(double x) noexcept {
  if (std::isnan(x)) return x;
  if (x > 709.782712893383973096) return kInfinity;
  if (x < -745.13321910194110842) return 0;
  const double k = std::floor(x * 1.44269504088896338700 + 0.5);
  const double high = x - k * kLn2High;
  const double low = k * kLn2Low;
  const double r = high - low;
  const double t = r * r;
  constexpr double kP[] = {4.13813679705723846039e-08, -1.65339022054652515390e-06,
                           6.61375632143793436117e-05, -2.77777777770155933842e-03,
                           1.66666666666666019037e-01, 0};
  const double c = r - polynomial(t, kP);
  return std::ldexp(1 - ((low - (r * c) / (2 - c)) - high), static_cast<int>(k));
}

double natural_log(double x) noexcept {
  if (std::isnan(x) || x < 0) return kNan;
  if (x == 0) return -kInfinity;
  if (std::isinf(x)) return x;
  int k = 0;
  double m = std::frexp(x, &k);  // from 0.5 to 1
  if (m < 0.70710678118654752440) {
    m *= 2;
    --k;
  }
  const double f = m - 1;
  const double s = f / (2 + f);
  const double z = s * s;
  constexpr double kLg[] = {1.479819860511658591e-01, 1.531383769920937332e-01,
                            1.818357216161805012e-01, 2.222219843214978396e-01,
                            2.857142874366239149e-01, 3.999999999940941908e-01,
                            6.666666666666735130e-01, 0};
  const double r = polynomial(z, kLg);
  const double half_square = 0.5 * f * f;
  return k * kLn2High - ((half_square - (s * (half_square + r) + k * kLn2Low)) - f);
}

double power(double x, double y) noexcept {
  if (y == std::floor(y) && std::abs(y) <= 1024) {
    double result = 1;
    double factor = x;
    for (auto n = static_cast<unsigned>(std::abs(y)); n != 0; n >>= 1) {
      if (n & 1) result *= factor;
      factor *= factor;
    }
    return y < 0 ? 1 / result : result;
  }
  if (x < 0) return kNan;
  if (x == 0) return y < 0 ? kInfinity : 0;
  if (y == 0.5) return std::sqrt(x);
  return natural_exp(y * natural_log(x));
}

// J. F. Hart's 5666, as in G. West, Better approximations to cumulative normal functions (2005),
// where its relative error is small.
double normal_cdf(double x) noexcept {
  const double z = std::abs(x);
  double tail = 0;  // above z
  if (z <= 37) {
    const double density = natural_exp(-z * z / 2);
    if (z < 3.5) {
      constexpr double kTop[] = {3.52624965998911e-02, 0.700383064443688, 6.37396220353165,
                                 33.912866078383,      112.079291497871,  221.213596169931,
                                 220.206867912376};
      constexpr double kBottom[] = {8.83883476483184e-02, 1.75566716318264, 16.064177579207,
                                    86.7807322029461,     296.564248779674, 637.333633378831,
                                    793.826512519948,     440.413735824752};
      tail = density * polynomial(z, kTop) / polynomial(z, kBottom);
    } else {
      double fraction = z;  // Laplace's continued fraction
      for (int i = 40; i > 0; --i) fraction = z + i / fraction;
      tail = density / fraction / 2.50662827463100050242;
    }
  }
  return x > 0 ? 1 - tail : tail;
}

// M. J. Wichura, Algorithm AS 241 (PPND16), Applied Statistics 37 (1988).
double normal_quantile(double p) noexcept {
  if (!(p > 0)) return -kInfinity;
  if (!(p < 1)) return kInfinity;
  const double q = p - 0.5;
  if (std::abs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    constexpr double kA[] = {2.5090809287301226727e3, 3.3430575583588128105e4,
                             6.7265770927008700853e4, 4.5921953931549871457e4,
                             1.3731693765509461125e4, 1.9715909503065514427e3,
                             1.3314166789178437745e2, 3.3871328727963666080e0};
    constexpr double kB[] = {5.2264952788528545610e3, 2.8729085735721942674e4,
                             3.9307895800092710610e4, 2.1213794301586595867e4,
                             5.3941960214247511077e3, 6.8718700749205790830e2,
                             4.2313330701600911252e1, 1.0};
    return q * polynomial(r, kA) / polynomial(r, kB);
  }
  double r = std::sqrt(-natural_log(q < 0 ? p : 1 - p));
  double value = 0;
  if (r <= 5) {
    r -= 1.6;
    constexpr double kC[] = {7.74545014278341407640e-4, 2.27238449892691845833e-2,
                             2.41780725177450611770e-1, 1.27045825245236838258e0,
                             3.64784832476320460504e0,  5.76949722146069140550e0,
                             4.63033784615654529590e0,  1.42343711074968357734e0};
    constexpr double kD[] = {1.05075007164441684324e-9, 5.47593808499534494600e-4,
                             1.51986665636164571966e-2, 1.48103976427480074590e-1,
                             6.89767334985100004550e-1, 1.67638483018380384940e0,
                             2.05319162663775882187e0,  1.0};
    value = polynomial(r, kC) / polynomial(r, kD);
  } else {
    r -= 5;
    constexpr double kE[] = {2.01033439929228813265e-7, 2.71155556874348757815e-5,
                             1.24266094738807843860e-3, 2.65321895265761230930e-2,
                             2.96560571828504891230e-1, 1.78482653991729133580e0,
                             5.46378491116411436990e0,  6.65790464350110377720e0};
    constexpr double kF[] = {2.04426310338993978564e-15, 1.42151175831644588870e-7,
                             1.84631831751005468180e-5,  7.86869131145613259100e-4,
                             1.48753612908506148525e-2,  1.36929880922735805310e-1,
                             5.99832206555887937690e-1,  1.0};
    value = polynomial(r, kE) / polynomial(r, kF);
  }
  return q < 0 ? -value : value;
}

}  // namespace dtrain::tune
