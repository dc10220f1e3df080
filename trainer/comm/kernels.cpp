#include "trainer/comm/kernels.hpp"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

namespace dtrain::train::comm {
namespace {

// Elements of one pass over the sources: the partial result stays in the first level cache.
constexpr std::size_t kPass = 2048;

#if defined(__clang__)
#define DTRAIN_VECTORIZE _Pragma("clang loop vectorize(assume_safety)")
#else
#define DTRAIN_VECTORIZE _Pragma("GCC ivdep")
#endif

// The additions that training spends its time on, for the widest registers that there are. Chosen
// by hand and not by target_clones: its resolvers run before the sanitizers do. Products with a
// factor are rounded before they are added (-ffp-contract=off).
// NOLINTBEGIN(bugprone-macro-parentheses): types and attributes
#define DTRAIN_DEFINE_ADD(isa, type, attribute)                                                  \
  attribute void add_##isa(type* out, const type* a, const type* b, std::size_t count) {         \
    DTRAIN_VECTORIZE                                                                             \
    for (std::size_t i = 0; i < count; ++i) out[i] = a[i] + b[i];                                \
  }                                                                                              \
  attribute void add_scaled_##isa(type* out, const type* a, type by, const type* b, type factor, \
                                  std::size_t count) {                                           \
    DTRAIN_VECTORIZE                                                                             \
    for (std::size_t i = 0; i < count; ++i) out[i] = a[i] * by + b[i] * factor;                  \
  }
// NOLINTEND(bugprone-macro-parentheses)
DTRAIN_DEFINE_ADD(plain, float, )
DTRAIN_DEFINE_ADD(plain, double, )
#if defined(__x86_64__)
DTRAIN_DEFINE_ADD(avx2, float, __attribute__((target("avx2"))))
DTRAIN_DEFINE_ADD(avx2, double, __attribute__((target("avx2"))))
DTRAIN_DEFINE_ADD(avx512, float, __attribute__((target("avx512f,prefer-vector-width=512"))))
DTRAIN_DEFINE_ADD(avx512, double, __attribute__((target("avx512f,prefer-vector-width=512"))))
#endif

template <typename T>
struct Adders {
  void (*add)(T* out, const T* a, const T* b, std::size_t count) = add_plain;
  // out = a * by + b * factor; by = 1 changes nothing of a.
  void (*add_scaled)(T* out, const T* a, T by, const T* b, T factor,
                     std::size_t count) = add_scaled_plain;

  static Adders best() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return {add_avx512, add_scaled_avx512};
    if (__builtin_cpu_supports("avx2")) return {add_avx2, add_scaled_avx2};
#endif
    return {};
  }
};
template <typename T>
const Adders<T> kAdders = Adders<T>::best();

template <typename T>
struct Operations {
  // Sums of integers wrap around, as everywhere in LibTorch.
  static T sum(T a, T b) {
    if constexpr (std::is_same_v<T, bool>) {
      return a || b;
    } else if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    } else {
      return a + b;
    }
  }
  static T product(T a, T b) {
    if constexpr (std::is_same_v<T, bool>) {
      return a && b;
    } else if constexpr (std::is_integral_v<T>) {
      // u16 would become a signed int, which may overflow.
      using U = std::conditional_t<sizeof(T) < 4, unsigned, std::make_unsigned_t<T>>;
      return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
    } else {
      return a * b;
    }
  }
  static T min(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(a) || std::isnan(b)) return a + b;
    }
    return b < a ? b : a;
  }
  static T max(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(a) || std::isnan(b)) return a + b;
    }
    return a < b ? b : a;
  }
};

template <typename T, typename Op>
void apply(T* out, const T* a, const T* b, std::size_t count, Op op) {
  DTRAIN_VECTORIZE
  for (std::size_t i = 0; i < count; ++i) out[i] = op(a[i], b[i]);
}

// out = a op b, for one pair.
template <typename T>
void combine(Reduction reduction, T* out, const T* a, const T* b, std::size_t count) {
  using O = Operations<T>;
  switch (reduction) {
    case Reduction::sum:
    case Reduction::average:
      if constexpr (std::is_floating_point_v<T>) return kAdders<T>.add(out, a, b, count);
      return apply(out, a, b, count, O::sum);
    case Reduction::product:
      return apply(out, a, b, count, O::product);
    case Reduction::min:
      return apply(out, a, b, count, O::min);
    case Reduction::max:
      return apply(out, a, b, count, O::max);
    case Reduction::bit_and:
    case Reduction::bit_or:
    case Reduction::bit_xor:
      break;
  }
  if constexpr (std::is_integral_v<T>) {
    if (reduction == Reduction::bit_and) {
      apply(out, a, b, count, [](T x, T y) { return static_cast<T>(x & y); });
    } else if (reduction == Reduction::bit_or) {
      apply(out, a, b, count, [](T x, T y) { return static_cast<T>(x | y); });
    } else {
      apply(out, a, b, count, [](T x, T y) { return static_cast<T>(x ^ y); });
    }
  }
}

template <typename T>
void divide(T* out, int n, std::size_t count) {
  if constexpr (!std::is_same_v<T, bool>) {
    for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<T>(out[i] / static_cast<T>(n));
  }
}

template <typename T>
void reduce_plain(Reduction reduction, void* out, const void* const* sources, int n,
                  std::size_t count) {
  T* const to = static_cast<T*>(out);
  for (std::size_t begin = 0; begin < count; begin += kPass) {
    const std::size_t length = std::min(kPass, count - begin);
    const auto source = [&](int i) { return static_cast<const T*>(sources[i]) + begin; };
    if (n == 1) {
      std::memmove(to + begin, source(0), length * sizeof(T));
    } else {
      combine(reduction, to + begin, source(0), source(1), length);
    }
    for (int i = 2; i < n; ++i) combine(reduction, to + begin, to + begin, source(i), length);
    if (reduction == Reduction::average) divide(to + begin, n, length);
  }
}

// bf16 by hand: these vectorize, the class's conversions branch.
void widen(float* out, const c10::BFloat16* in, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(in[i].x) << 16;
    std::memcpy(&out[i], &bits, sizeof bits);
  }
}

void narrow(c10::BFloat16* out, const float* in, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &in[i], sizeof bits);
    const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
    const bool nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
    out[i].x = static_cast<std::uint16_t>(nan ? 0x7FC0U : rounded);
  }
}

void widen(float* out, const c10::Half* in, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<float>(in[i]);
}

void narrow(c10::Half* out, const float* in, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = c10::Half(in[i]);
}

template <typename T>
void reduce_widened(Reduction reduction, void* out, const void* const* sources, int n,
                    std::size_t count) {
  float sum[kPass];
  float next[kPass];
  for (std::size_t begin = 0; begin < count; begin += kPass) {
    const std::size_t length = std::min(kPass, count - begin);
    widen(sum, static_cast<const T*>(sources[0]) + begin, length);
    for (int i = 1; i < n; ++i) {
      widen(next, static_cast<const T*>(sources[i]) + begin, length);
      combine(reduction, sum, sum, next, length);
    }
    if (reduction == Reduction::average) divide(sum, n, length);
    narrow(static_cast<T*>(out) + begin, sum, length);
  }
}

template <typename T>
void sum_scaled_plain(void* out, const void* const* sources, int n, std::size_t count, T factor) {
  T sum[kPass];  // `out` may be any of the sources
  for (std::size_t begin = 0; begin < count; begin += kPass) {
    const std::size_t length = std::min(kPass, count - begin);
    const auto source = [&](int i) { return static_cast<const T*>(sources[i]) + begin; };
    T* const to = static_cast<T*>(out) + begin;
    if (n == 1) {
      for (std::size_t i = 0; i < length; ++i) to[i] = source(0)[i] * factor;
    } else {
      kAdders<T>.add_scaled(n == 2 ? to : sum, source(0), factor, source(1), factor, length);
    }
    for (int i = 2; i < n; ++i) {
      kAdders<T>.add_scaled(i + 1 == n ? to : sum, sum, 1, source(i), factor, length);
    }
  }
}

template <typename T>
void sum_scaled_widened(void* out, const void* const* sources, int n, std::size_t count,
                        float factor) {
  float sum[kPass];
  float next[kPass];
  T rounded[kPass];
  for (std::size_t begin = 0; begin < count; begin += kPass) {
    const std::size_t length = std::min(kPass, count - begin);
    for (int i = 0; i < n; ++i) {
      float* const its = i == 0 ? sum : next;
      widen(its, static_cast<const T*>(sources[i]) + begin, length);
      for (std::size_t k = 0; k < length; ++k) its[k] *= factor;
      narrow(rounded, its, length);
      widen(its, rounded, length);
      if (i > 0) combine(Reduction::sum, sum, sum, next, length);
    }
    narrow(static_cast<T*>(out) + begin, sum, length);
  }
}

template <typename T>
double squares_plain(const T* in, std::size_t count) {
  constexpr std::size_t kLanes = 8;
  double sums[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(in[i + lane]);
      sums[lane] += value * value;
    }
  }
  for (std::size_t lane = 0; i < count; ++i, ++lane) {
    const auto value = static_cast<double>(in[i]);
    sums[lane] += value * value;
  }
  double sum = 0;
  for (const double each : sums) sum += each;
  return sum;
}

template <typename T>
double squares_widened(const void* in, std::size_t count) {
  float wide[kPass];
  double sum = 0;
  for (std::size_t begin = 0; begin < count; begin += kPass) {
    const std::size_t length = std::min(kPass, count - begin);
    widen(wide, static_cast<const T*>(in) + begin, length);
    sum += squares_plain(wide, length);
  }
  return sum;
}

}  // namespace

bool can_scale(Element element) {
  return element == Element::f16 || element == Element::bf16 || element == Element::f32 ||
         element == Element::f64;
}

void sum_scaled(Element element, void* out, const void* const* sources, int n, std::size_t count,
                double factor) {
  const auto narrower = static_cast<float>(factor);
  if (element == Element::f32) sum_scaled_plain<float>(out, sources, n, count, narrower);
  if (element == Element::f64) sum_scaled_plain<double>(out, sources, n, count, factor);
  if (element == Element::f16) sum_scaled_widened<c10::Half>(out, sources, n, count, narrower);
  if (element == Element::bf16) sum_scaled_widened<c10::BFloat16>(out, sources, n, count, narrower);
}

double sum_of_squares(Element element, const void* in, std::size_t count) {
  if (element == Element::f16) return squares_widened<c10::Half>(in, count);
  if (element == Element::bf16) return squares_widened<c10::BFloat16>(in, count);
  if (element == Element::f64) return squares_plain(static_cast<const double*>(in), count);
  return element == Element::f32 ? squares_plain(static_cast<const float*>(in), count) : 0;
}

std::size_t size_of(Element element) {
  switch (element) {
    case Element::boolean:
    case Element::u8:
    case Element::i8:
      return 1;
    case Element::u16:
    case Element::i16:
    case Element::f16:
    case Element::bf16:
      return 2;
    case Element::u32:
    case Element::i32:
    case Element::f32:
      return 4;
    case Element::u64:
    case Element::i64:
    case Element::f64:
    case Element::c64:
      return 8;
    case Element::c128:
      return 16;
  }
  return 0;
}

const char* name_of(Element element) {
  switch (element) {
    case Element::boolean:
      return "bool";
    case Element::u8:
      return "u8";
    case Element::i8:
      return "i8";
    case Element::u16:
      return "u16";
    case Element::i16:
      return "i16";
    case Element::u32:
      return "u32";
    case Element::i32:
      return "i32";
    case Element::u64:
      return "u64";
    case Element::i64:
      return "i64";
    case Element::f16:
      return "f16";
    case Element::bf16:
      return "bf16";
    case Element::f32:
      return "f32";
    case Element::f64:
      return "f64";
    case Element::c64:
      return "c64";
    case Element::c128:
      return "c128";
  }
  return "?";
}

const char* name_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum:
      return "sum";
    case Reduction::average:
      return "average";
    case Reduction::product:
      return "product";
    case Reduction::min:
      return "min";
    case Reduction::max:
      return "max";
    case Reduction::bit_and:
      return "bit_and";
    case Reduction::bit_or:
      return "bit_or";
    case Reduction::bit_xor:
      return "bit_xor";
  }
  return "?";
}

bool can_reduce(Reduction reduction, Element element) {
  const bool is_complex = element == Element::c64 || element == Element::c128;
  const bool is_fraction = element == Element::f16 || element == Element::bf16 ||
                           element == Element::f32 || element == Element::f64;
  switch (reduction) {
    case Reduction::sum:
      return true;
    case Reduction::average:
      return element != Element::boolean;
    case Reduction::product:
    case Reduction::min:
    case Reduction::max:
      return !is_complex;
    case Reduction::bit_and:
    case Reduction::bit_or:
    case Reduction::bit_xor:
      return !is_complex && !is_fraction;
  }
  return false;
}

void reduce(Reduction reduction, Element element, void* out, const void* const* sources, int n,
            std::size_t count) {
  switch (element) {
    case Element::boolean:
      return reduce_plain<bool>(reduction, out, sources, n, count);
    case Element::u8:
      return reduce_plain<std::uint8_t>(reduction, out, sources, n, count);
    case Element::i8:
      return reduce_plain<std::int8_t>(reduction, out, sources, n, count);
    case Element::u16:
      return reduce_plain<std::uint16_t>(reduction, out, sources, n, count);
    case Element::i16:
      return reduce_plain<std::int16_t>(reduction, out, sources, n, count);
    case Element::u32:
      return reduce_plain<std::uint32_t>(reduction, out, sources, n, count);
    case Element::i32:
      return reduce_plain<std::int32_t>(reduction, out, sources, n, count);
    case Element::u64:
      return reduce_plain<std::uint64_t>(reduction, out, sources, n, count);
    case Element::i64:
      return reduce_plain<std::int64_t>(reduction, out, sources, n, count);
    case Element::f16:
      return reduce_widened<c10::Half>(reduction, out, sources, n, count);
    case Element::bf16:
      return reduce_widened<c10::BFloat16>(reduction, out, sources, n, count);
    case Element::f32:
      return reduce_plain<float>(reduction, out, sources, n, count);
    case Element::f64:
      return reduce_plain<double>(reduction, out, sources, n, count);
    case Element::c64:
      return reduce_plain<float>(reduction, out, sources, n, 2 * count);
    case Element::c128:
      return reduce_plain<double>(reduction, out, sources, n, 2 * count);
  }
}

}  // namespace dtrain::train::comm
