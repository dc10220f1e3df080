#include "agent/profiler/unwinder.hpp"

#include <cxxabi.h>
#include <elfutils/libdw.h>
#include <elfutils/libdwfl.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "launcher/core/error.hpp"

namespace dtrain::profiler {
namespace {

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return status == 0 && text ? text.get() : name;
}

std::string last_error() {
  const char* text = ::dwfl_errmsg(-1);
  return text == nullptr ? "unknown" : text;
}

// Where the code has lines. clang writes no index of them by default (.debug_aranges): then each of
// the module's units is asked.
void name_line(Dwfl_Module* module, Dwarf_Addr address, Frame& frame) {
  if (Dwfl_Line* line = ::dwfl_module_getsrc(module, address)) {
    const char* source = ::dwfl_lineinfo(line, nullptr, &frame.line, nullptr, nullptr, nullptr);
    if (source != nullptr) frame.file = source;
    return;
  }
  Dwarf_Addr bias = 0;
  for (Dwarf_Die* unit = nullptr; (unit = ::dwfl_module_nextcu(module, unit, &bias)) != nullptr;) {
    if (::dwarf_haspc(unit, address - bias) <= 0) continue;
    Dwarf_Line* line = ::dwarf_getsrc_die(unit, address - bias);
    if (line == nullptr) return;
    const char* source = ::dwarf_linesrc(line, nullptr, nullptr);
    if (source != nullptr) frame.file = source;
    ::dwarf_lineno(line, &frame.line);
    return;
  }
}

}  // namespace

struct Unwinder::State {
  pid_t pid = 0;
  Dwfl* dwfl = nullptr;
  const ThreadSnapshot* thread = nullptr;  // whose frames are wanted now
  std::vector<Frame> frames;
  bool is_beyond = false;  // more of the stack was asked for than was copied

  // What was copied while it stood still; else what is there now: tables and code do not change.
  bool read(std::uint64_t address, Dwarf_Word* word) {
    const std::uint64_t offset = address - thread->stack_address;
    if (address >= thread->stack_address && offset + sizeof *word <= thread->stack.size()) {
      std::memcpy(word, thread->stack.data() + offset, sizeof *word);
      return true;
    }
    // More of the stack was not copied, and is another by now.
    if (address >= thread->stack_address && address < thread->stack_end) {
      is_beyond = true;
      return false;
    }
    const iovec here{word, sizeof *word};
    // NOLINTNEXTLINE(performance-no-int-to-ptr): of another process
    const iovec there{reinterpret_cast<void*>(address), sizeof *word};
    return ::process_vm_readv(pid, &here, 1, &there, 1, 0) == sizeof *word;
  }

  // In the order of the numbers that the x86-64 ABI gives them.
  std::array<Dwarf_Word, 17> registers() const {
    const user_regs_struct& r = thread->registers;
    return {r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8,
            r.r9,  r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rip};
  }

  Frame name(std::uint64_t address, bool is_call) const {
    Frame frame;
    frame.address = address;
    // A caller's address is that behind its call, which may belong to the next function.
    const std::uint64_t at = is_call ? address - 1 : address;
    Dwfl_Module* module = ::dwfl_addrmodule(dwfl, at);
    if (module == nullptr) return frame;
    const char* file =
        ::dwfl_module_info(module, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr);
    if (file != nullptr)
      frame.library = std::strrchr(file, '/') ? std::strrchr(file, '/') + 1 : file;
    GElf_Off offset = 0;
    GElf_Sym symbol;
    const char* function =
        ::dwfl_module_addrinfo(module, at, &offset, &symbol, nullptr, nullptr, nullptr);
    if (function != nullptr) frame.function = demangled(function);
    name_line(module, at, frame);
    return frame;
  }
};

Unwinder::Unwinder(pid_t pid) : state_(std::make_unique<State>()) {
  static char* no_path = nullptr;  // no folders of debug information but the usual ones
  static const Dwfl_Callbacks files = {.find_elf = ::dwfl_linux_proc_find_elf,
                                       .find_debuginfo = ::dwfl_standard_find_debuginfo,
                                       .section_address = nullptr,
                                       .debuginfo_path = &no_path};
  static const Dwfl_Thread_Callbacks threads = {
      .next_thread = [](Dwfl*, void*, void**) -> pid_t { return 0; },
      .get_thread =
          [](Dwfl*, pid_t, void* argument, void** thread_argument) {
            *thread_argument = argument;
            return true;
          },
      .memory_read =
          [](Dwfl*, Dwarf_Addr address, Dwarf_Word* word, void* argument) {
            return static_cast<State*>(argument)->read(address, word);
          },
      .set_initial_registers =
          [](Dwfl_Thread* thread, void* argument) {
            const auto values = static_cast<State*>(argument)->registers();
            return ::dwfl_thread_state_registers(thread, 0, values.size(), values.data());
          },
      .detach = nullptr,
      .thread_detach = nullptr};
  state_->pid = pid;
  state_->dwfl = ::dwfl_begin(&files);
  const auto fail = [&] {
    const std::string why = last_error();
    if (state_->dwfl != nullptr) ::dwfl_end(state_->dwfl);
    throw Error(ErrorCode::failed,
                "the files of process " + std::to_string(pid) + " cannot be read: " + why);
  };
  if (state_->dwfl == nullptr || ::dwfl_linux_proc_report(state_->dwfl, pid) != 0 ||
      ::dwfl_report_end(state_->dwfl, nullptr, nullptr) != 0 ||
      !::dwfl_attach_state(state_->dwfl, nullptr, pid, &threads, state_.get())) {
    fail();
  }
}

Unwinder::~Unwinder() {
  ::dwfl_end(state_->dwfl);
}

std::vector<Frame> Unwinder::frames(const ThreadSnapshot& thread, std::string& cut) {
  state_->thread = &thread;
  state_->frames.clear();
  state_->is_beyond = false;
  const auto take = [](Dwfl_Frame* frame, void* argument) -> int {
    State& state = *static_cast<State*>(argument);
    Dwarf_Addr address = 0;
    bool is_first = false;
    if (!::dwfl_frame_pc(frame, &address, &is_first)) return DWARF_CB_ABORT;
    if (address == 0) return DWARF_CB_ABORT;
    state.frames.push_back(state.name(address, !is_first));
    return state.frames.size() < kMostFrames ? DWARF_CB_OK : DWARF_CB_ABORT;
  };
  const int result = ::dwfl_getthread_frames(state_->dwfl, thread.tid, take, state_.get());
  cut.clear();
  if (state_->frames.size() >= kMostFrames) {
    cut = "no more than " + std::to_string(kMostFrames) + " frames are shown";
  } else if (state_->is_beyond) {
    cut = "no more of its stack was looked at";
  } else if (result < 0) {
    cut = last_error();
  }
  return std::move(state_->frames);
}

}  // namespace dtrain::profiler
