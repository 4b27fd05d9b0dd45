// Functions by which a test reads the host kernels' last launch, and sets their answers.
#include "kernels.h"

EXPORT int64_t host_launches() { return launches; }
EXPORT int64_t host_last_max_m() { return last_max_m; }
EXPORT int host_last_slices() { return last_slices; }
EXPORT int host_last_pad(int side) { return last_pads[side]; }
EXPORT void host_limit(int64_t rows) { most_rows = rows; }
EXPORT void host_fail(int at_prepare, int at_launch) {
  prepare_error = at_prepare ? "prepared to fail" : nullptr;
  launch_error = at_launch ? "launched to fail" : nullptr;
}
