#pragma once

namespace dtrain::train {

// Some virtual machines show a processor with tile registers (AMX) and hide how large they are
// (CPUID leaf 1DH; Intel's Software Developer's Manual, volume 2). oneDNN then sets up tiles of no
// size, and LibTorch's matrix products in bf16 end by SIGILL. There, unless ONEDNN_MAX_CPU_ISA is
// set, oneDNN is told to do without in this process. Must come before oneDNN's first use; later
// calls do nothing. Context::join() calls it. `tells`: whether tell_of_processor() does so.
void prepare_processor(bool tells);

// Says once that there is no AMX, where it was found not to work: when 16 bits are asked for.
void tell_of_processor();

}  // namespace dtrain::train
