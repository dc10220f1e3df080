#pragma once

namespace dtrain::train {

// Some virtual machines show a processor with tile registers (AMX) on which LibTorch's matrix
// products in bf16 end by SIGILL. Where AMX is seen, and ONEDNN_MAX_CPU_ISA is not set, a child
// process tries one such product (some 30 ms); if it dies of it, oneDNN is told to do without in
// this process. Must come before oneDNN's first use; later calls do nothing. Context::join() calls
// it. `tells`: whether tell_of_processor() does so.
void prepare_processor(bool tells);

// Says once that there is no AMX, where it was found not to work: when 16 bits are asked for.
void tell_of_processor();

}  // namespace dtrain::train
