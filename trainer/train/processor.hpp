#pragma once

namespace dtrain::train {

// Some virtual machines show a processor with tile registers (AMX) on which LibTorch's matrix
// products in bf16 end by SIGILL. Where AMX is seen, and ONEDNN_MAX_CPU_ISA is not set, a child
// process tries one such product (some 30 ms); if it dies of it, oneDNN is told to do without in
// this process, with a warning if `warns`. Must come before oneDNN's first use; later calls do
// nothing. Context::join() calls it.
void prepare_processor(bool warns);

}  // namespace dtrain::train
