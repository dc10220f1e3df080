#include "trainer/train/snapshot.hpp"

#include <ATen/Parallel.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <tuple>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace dtrain::train {
namespace {

constexpr std::size_t kAlign = 64;
constexpr std::int64_t kPiece = 1 << 20;  // of one memcpy

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

std::size_t bytes_of(const TensorFiles& files) {
  std::size_t bytes = 0;
  for (const auto& [file, tensors] : files) {
    for (const auto& [name, tensor] : tensors) bytes += aligned(tensor.nbytes());
  }
  return bytes;
}

// Writes one byte of each page, on all of ATen's threads: the kernel's clearing of pages is most
// of the work. Huge pages, where the kernel gives them, make it five times less.
void touch(std::byte* begin, std::size_t size) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  const std::uintptr_t first = (address + page - 1) / page * page;
  if (first < address + size) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): rounded to pages
    ::madvise(reinterpret_cast<void*>(first), address + size - first, MADV_HUGEPAGE);
  }
  const auto pages = static_cast<std::int64_t>((size + page - 1) / page);
  at::parallel_for(0, pages, 4096, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t i = from; i < to; ++i) {
      const_cast<volatile std::byte&>(begin[static_cast<std::size_t>(i) * page]) = std::byte{0};
    }
  });
}

// Past the processor's caches, which would first read what is written over. `to` is aligned.
void copy_past_caches(std::byte* to, const std::byte* from, std::size_t size) {
#if defined(__SSE2__)
  constexpr std::size_t kVector = sizeof(__m128i);
  std::size_t at = 0;
  for (; at + 4 * kVector <= size; at += 4 * kVector) {
    const auto* const source = reinterpret_cast<const __m128i*>(from + at);
    auto* const target = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  std::memcpy(to + at, from + at, size - at);
  _mm_sfence();
#else
  std::memcpy(to, from, size);
#endif
}

struct Piece {
  std::byte* to;
  const std::byte* from;
  std::size_t size;
};

}  // namespace

void Snapshot::reserve(const TensorFiles& files, bool pinned) {
  const std::size_t bytes = bytes_of(files);
  if (memory_.defined() && memory_.nbytes() >= bytes) return;
  sources_.clear();
  memory_.reset();  // never two of them
  memory_ = at::empty({static_cast<std::int64_t>(bytes)},
                      at::TensorOptions().dtype(at::kByte).pinned_memory(pinned));
  if (bytes > 0) touch(static_cast<std::byte*>(memory_.mutable_data_ptr()), bytes);
}

void Snapshot::take(const TensorFiles& files, bool pinned) {
  const c10::NoGradGuard no_grad;
  reserve(files, pinned);
  sources_.clear();
  used_ = 0;
  auto* memory =
      memory_.nbytes() > 0 ? static_cast<std::byte*>(memory_.mutable_data_ptr()) : nullptr;
  std::vector<Piece> pieces;
  c10::DeviceIndex gpu = -1;
  for (const auto& [file, tensors] : files) {
    std::vector<TensorSource>& sources = sources_[file];
    for (const auto& [name, tensor] : tensors) {
      const std::size_t size = tensor.nbytes();
      std::byte* to = memory + used_;
      used_ += aligned(size);
      sources.push_back(
          {name, to_dtype(name, tensor.scalar_type()), tensor.sizes().vec(), {to, size}});
      if (size == 0) continue;
      if (tensor.is_cpu() && tensor.is_contiguous()) {
        const auto* from = static_cast<const std::byte*>(tensor.const_data_ptr());
        for (std::size_t at = 0; at < size; at += kPiece) {
          pieces.push_back({to + at, from + at, std::min<std::size_t>(kPiece, size - at)});
        }
        continue;
      }
      if (tensor.is_cuda()) gpu = tensor.device().index();
      at::from_blob(to, tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type()))
          .copy_(tensor.detach(), /*non_blocking=*/pinned);
    }
  }
  at::parallel_for(0, static_cast<std::int64_t>(pieces.size()), 1,
                   [&](std::int64_t from, std::int64_t to) {
                     for (std::int64_t i = from; i < to; ++i) {
                       const Piece& piece = pieces[static_cast<std::size_t>(i)];
                       copy_past_caches(piece.to, piece.from, piece.size);
                     }
                   });
  if (gpu >= 0) at::detail::getCUDAHooks().deviceSynchronize(gpu);
}

TensorFiles share_of_rank(const TensorFiles& files, const std::string& whole, int rank, int ranks) {
  TensorFiles share;
  std::vector<std::size_t> load(static_cast<std::size_t>(ranks), 0);
  using Entry = std::tuple<std::size_t, const std::string*, const std::string*, at::Tensor>;
  std::vector<Entry> entries;
  for (const auto& [file, tensors] : files) {
    share[file];  // a rank without a tensor of it writes an empty file
    for (const auto& [name, tensor] : tensors) {
      if (file != whole) {
        entries.emplace_back(tensor.nbytes(), &file, &name, tensor);
        continue;
      }
      load[0] += tensor.nbytes();
      if (rank == 0) share[file].emplace(name, tensor);
    }
  }
  if (rank != 0) share.erase(whole);
  // The largest first, each to the one who has least.
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return std::get<0>(a) > std::get<0>(b); });
  for (const auto& [size, file, name, tensor] : entries) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += size;
    if (least - load.begin() == rank) share[*file].emplace(*name, tensor);
  }
  return share;
}

}  // namespace dtrain::train
