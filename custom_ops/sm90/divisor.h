// Division by what a launch knows.
#pragma once
#include <cstdint>

namespace onnxbolt {
namespace sm90 {

// Division of numbers below 2^31 by one that the host knows: a multiplication and a shift (Granlund
// and Montgomery, "Division by Invariant Integers using Multiplication", 1994, section 4). One
// thread does all of a producer's arithmetic, and a warpgroup between its tiles has nothing to hide
// a division's latency, so this counts.
class Divisor {
 public:
  Divisor() = default;
  explicit Divisor(int divisor) : divisor_(divisor), shift_(0) {
    while ((int64_t(1) << shift_) < divisor) ++shift_;
    multiplier_ = static_cast<uint32_t>(
        ((uint64_t(1) << 32) * ((uint64_t(1) << shift_) - divisor)) / divisor + 1);
  }

  __device__ int divide(int n) const {
    return static_cast<int>((uint64_t(__umulhi(n, multiplier_)) + n) >> shift_);
  }

  // The quotient, and what remains in `n`.
  __device__ int split(int& n) const {
    const int quotient = divide(n);
    n -= quotient * divisor_;
    return quotient;
  }

 private:
  int divisor_ = 1, shift_ = 0;
  uint32_t multiplier_ = 1;
};

}  // namespace sm90
}  // namespace onnxbolt
