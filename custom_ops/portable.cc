// What libraries would otherwise ask of a C library as new as the build machine's.
#include <sys/random.h>

#include <cstdlib>

// libstdc++'s std::random_device calls it (glibc 2.36), and std::runtime_error refers to that; nothing here draws random numbers.
extern "C" unsigned arc4random() noexcept {
  unsigned value = 0;
  if (getrandom(&value, sizeof value, 0) != sizeof value) std::abort();
  return value;
}
