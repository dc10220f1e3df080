#pragma once

#include <cstddef>
#include <cstdint>

// Arithmetic over elements, as the collectives need it. No tensors, no threads.
namespace dtrain::train::comm {

enum class Element : std::uint8_t {
  boolean,
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  u64,
  i64,
  f16,
  bf16,
  f32,
  f64,
  c64,   // two f32: sum and average only
  c128,  // two f64: the same
};

enum class Reduction : std::uint8_t { sum, average, product, min, max, bit_and, bit_or, bit_xor };

std::size_t size_of(Element element);
const char* name_of(Element element);
const char* name_of(Reduction reduction);

// Whether reduce() knows the pair: no bit operations on fractions, no order among complex numbers.
bool can_reduce(Reduction reduction, Element element);

// out[i] = sources[0][i] op sources[1][i] op … sources[n-1][i], always in this order, so that the
// result does not depend on how the elements are cut into calls. f16 and bf16 are added up in f32
// and rounded once. NaN wins a min or max. `average` divides the sum by n (integers: towards zero).
//
// `out` may be sources[0] or sources[1], or overlap none of them.
void reduce(Reduction reduction, Element element, void* out, const void* const* sources, int n,
            std::size_t count);

// out[i] = sources[0][i] * factor + … + sources[n-1][i] * factor: each product rounded to the
// element's type, then added up as reduce() does; of f16, bf16, f32 and f64 only (can_scale). `out`
// may be any of the sources.
void sum_scaled(Element element, void* out, const void* const* sources, int n, std::size_t count,
                double factor);
bool can_scale(Element element);

// The sum of in[i]², gathered in double in an order that `count` alone decides. The same types.
double sum_of_squares(Element element, const void* in, std::size_t count);

}  // namespace dtrain::train::comm
