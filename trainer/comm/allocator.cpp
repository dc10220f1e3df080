#include "trainer/comm/allocator.hpp"

#include <c10/core/CPUAllocator.h>

#include <mutex>
#include <utility>

#include "trainer/comm/memory.hpp"

namespace dtrain::train::comm {
namespace {

thread_local bool wants_shared = false;

c10::Allocator* usual = nullptr;

void free_memory(void* pointer) {
  SharedHeap* const heap = SharedHeap::if_made();
  if (heap != nullptr && heap->contains(pointer)) {
    heap->free(pointer);
  } else {
    usual->raw_deleter()(pointer);
  }
}

class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (wants_shared && bytes > 0) {
      if (SharedHeap* const heap = SharedHeap::of_process()) {
        if (void* const memory = heap->allocate(bytes)) {
          return {memory, memory, &free_memory, c10::Device(c10::kCPU)};
        }
      }
    }
    return usual->allocate(bytes);
  }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override {
    return data.get() == data.get_context();
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_memory; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }
};

}  // namespace

void install_shared_allocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    usual = c10::GetCPUAllocator();
    // Somebody's allocator that cannot free by address could not be told from ours.
    if (usual->raw_deleter() == nullptr) return;
    static Allocator allocator;
    c10::SetCPUAllocator(&allocator, 100);
  });
}

SharedTensors::SharedTensors() : before_(std::exchange(wants_shared, true)) {}

SharedTensors::~SharedTensors() {
  wants_shared = before_;
}

bool is_shared(const at::Tensor& tensor) {
  const SharedHeap* const heap = SharedHeap::if_made();
  return heap != nullptr && tensor.is_cpu() && tensor.is_contiguous() &&
         heap->offset_of(tensor.const_data_ptr(), tensor.nbytes()).has_value();
}

}  // namespace dtrain::train::comm
